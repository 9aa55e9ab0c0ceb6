#include "caravan/train/dataset/prepare.h"

#include <atomic>
#include <gmock/gmock.h>
#include <thread>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan::prepare_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kTimeout = 400ms;
constexpr auto kBeat = 20ms;

void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) { body(*world); }, {.timeout = kTimeout});
}

/// Works for `duration`, telling the observer about it.
void work_for(std::chrono::milliseconds duration, DataObserver& observer) {
  observer.begin("sleeping", duration.count());
  for (auto left = duration; left > 0ms; left -= 5ms) {
    std::this_thread::sleep_for(5ms);
    observer.advance(5);
  }
}

TEST(WorkJointly, NoRankTimesOutWhileAnotherWorks) {
  std::atomic<int> num_done{0};
  std::vector<DataProgress> seen;
  on_ranks(3, [&](Communicator& world) {
    JointWork options{.beat = kBeat};
    std::function<void(DataObserver&)> work;
    if (world.rank() == 1) {
      options.progress = [&](const DataProgress& progress) { seen.push_back(progress); };
      work = [](DataObserver& observer) { work_for(4 * kTimeout, observer); };
    }
    work_jointly(world, work, options);
    ++num_done;
  });
  EXPECT_EQ(num_done, 3);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().stage, "sleeping");
  EXPECT_EQ(seen.back().total, (4 * kTimeout).count());
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].done, seen[i - 1].done);
  EXPECT_GT(seen.back().done, seen.front().done);
}

/// Work that says nothing for longer than the time-out, as one long call to the system.
TEST(WorkJointly, WorkNeedNotReport) {
  std::atomic<bool> has_ended{false};
  std::atomic<int> num_waited{0};
  on_ranks(2, [&](Communicator& world) {
    const auto work = [&](DataObserver&) {
      std::this_thread::sleep_for(3 * kTimeout);
      has_ended = true;
    };
    work_jointly(world, world.rank() == 0 ? work : std::function<void(DataObserver&)>(), {.beat = kBeat});
    if (has_ended) ++num_waited;
  });
  EXPECT_EQ(num_waited, 2) << "a rank went on before the work was done";
}

TEST(WorkJointly, ARequestToStopOnAnyRankEndsAll) {
  for (const int asked : {0, 1, 2}) {
    std::atomic<int> num_stopped{0};
    std::atomic<bool> has_ended{false};
    on_ranks(3, [&](Communicator& world) {
      const JointWork options{.beat = kBeat, .stop_requested = [&] { return world.rank() == asked; }};
      const auto endless = [&](DataObserver& observer) {
        struct AtEnd {
          std::atomic<bool>& flag;
          ~AtEnd() { flag = true; }
        } at_end{has_ended};
        work_for(1h, observer);
      };
      const std::string message = message_of<Interrupted>(
          [&] { work_jointly(world, world.rank() == 0 ? endless : std::function<void(DataObserver&)>(), options); });
      EXPECT_THAT(message, HasSubstr("stopped on request"));
      ++num_stopped;
    });
    EXPECT_EQ(num_stopped, 3);
    EXPECT_TRUE(has_ended) << "the work goes on after the function has returned";
  }
}

TEST(WorkJointly, AFailureIsThrownWhereItHappened) {
  std::atomic<int> num_told{0};
  const std::string message = message_of<DataError>([&] {
    on_ranks(3, [&](Communicator& world) {
      const auto fails = [](DataObserver&) { throw DataError({"data", "the text", "is damaged", "", ""}); };
      try {
        work_jointly(world, world.rank() == 0 ? fails : std::function<void(DataObserver&)>(), {.beat = kBeat});
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("data preparation: rank 0 failed: [data] the text: is damaged"));
        ++num_told;
        throw;
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("the text: is damaged"));
  EXPECT_EQ(num_told, 2);
}

/// A rank that is alive but no longer takes part.
TEST(WorkJointly, ALostRankIsNoticed) {
  EXPECT_THROW(on_ranks(2,
                        [&](Communicator& world) {
                          if (world.rank() == 0) {
                            std::this_thread::sleep_for(4 * kTimeout);
                            return;
                          }
                          work_jointly(world, {}, {.beat = kBeat});
                        }),
               CommError);
}

class PrepareDataset : public ::testing::Test {
 protected:
  PrepareDataset() { write_file(folder / "text.txt", read_file(book_path()).substr(0, 40'000)); }
  Recipe::Data data() const { return {.text = {(folder / "text.txt").string()}, .tokenizer = "bytes"}; }
  DataFolders folders(const std::string& cache) const { return {.home = folder.path(), .cache = folder / cache}; }
  int64_t count_files(const std::string& cache) const {
    return std::distance(std::filesystem::directory_iterator(folder / cache), std::filesystem::directory_iterator());
  }

  const TemporaryFolder folder;
};

TEST_F(PrepareDataset, OneRankOfEachHostBuilds) {
  on_ranks(4, [&](Communicator& world) {
    // Two hosts, each with its own cache.
    const std::string host = "host" + std::to_string(world.rank() / 2);
    const Dataset dataset = prepare_dataset(data(), folders("cache-" + host), world, {.beat = kBeat}, host);
    EXPECT_EQ(dataset.num_train_tokens(), 36'000);
    EXPECT_EQ(dataset.validation.tokens.size(), 4'000);
  });
  for (const char* cache : {"cache-host0", "cache-host1"}) EXPECT_EQ(count_files(cache), 2);
}

/// The caches of ranks that are thought to share a host need not be one.
TEST_F(PrepareDataset, ARankThatFindsNothingBuilds) {
  on_ranks(2, [&](Communicator& world) {
    const std::string cache = "cache" + std::to_string(world.rank());
    EXPECT_EQ(prepare_dataset(data(), folders(cache), world, {.beat = kBeat}).num_train_tokens(), 36'000);
  });
  EXPECT_EQ(count_files("cache0"), 2);
  EXPECT_EQ(count_files("cache1"), 2);
}

class PrepareSamples : public PrepareDataset {
 protected:
  static constexpr int64_t kContext = 16;
  static constexpr int64_t kStep = 160;  // samples; a shard has 17 to 50
  static constexpr auto kPatience = std::chrono::seconds(20);

  PrepareSamples() { write_file(folder / "text.txt", read_file(book_path()).substr(0, 6'000)); }
  Recipe::Data streamed(const std::string& text = "text.txt") const {
    return {.text = {(folder / text).string()}, .streaming = true, .tokenizer = "bytes"};
  }
  DataFolders small(const std::string& cache) const {
    return {.home = folder.path(), .cache = folder / cache, .cache_limit_bytes = 1, .shard_bytes = 300};
  }
  static std::vector<int64_t> row(const TrainWindows& windows, int64_t sample) {
    std::vector<int64_t> inputs(kContext), labels(kContext);
    windows.fill(sample, inputs, labels);
    inputs.push_back(labels.back());
    return inputs;
  }
};

/// Steps with more shards than a rank keeps open by default, and a cache that keeps only files in use.
TEST_F(PrepareSamples, NoRankWaitsForAShardThatTheCacheHasRemoved) {
  const Dataset whole = open_dataset(streamed(), small("cache-of-one"));
  const TrainWindows want = whole.train_windows(kContext, 3);
  std::atomic<int> num_rows{0};
  const auto read = [&](const std::shared_ptr<Communicator>& world) {
    const Dataset dataset = prepare_dataset(streamed(), small("cache"), *world, {.beat = kBeat});
    EXPECT_EQ(dataset.streamed->texts->builds(), world->rank() == 0);
    const TrainWindows windows = dataset.train_windows(kContext, 3);
    for (int64_t first = 0; first < 6 * kStep; first += kStep) {
      prepare_samples(*dataset.streamed->texts, windows, first, first + kStep, *world, {.beat = kBeat});
      for (int64_t sample = first + world->rank(); sample < first + kStep; sample += world->size()) {
        EXPECT_EQ(row(windows, sample), row(want, sample)) << sample;
        ++num_rows;
      }
    }
    EXPECT_GT(windows.epochs(0, 6 * kStep), 2.0);
  };
  run_thread_ranks(3, read, {.timeout = kPatience});
  EXPECT_EQ(num_rows, 6 * kStep);
}

/// Only the rank that tokenizes looks into its text. The others may know theirs by other times, or have it elsewhere.
TEST_F(PrepareSamples, RanksOfAHostMayHaveCopiesOfTheText) {
  write_file(folder / "copy1.txt", read_file(folder / "text.txt"));
  std::filesystem::rename(folder / "text.txt", folder / "copy0.txt");
  std::filesystem::last_write_time(folder / "copy1.txt", std::filesystem::file_time_type{});
  std::vector<std::vector<int64_t>> rows(2);
  const auto read = [&](const std::shared_ptr<Communicator>& world) {
    const std::string text = "copy" + std::to_string(world->rank()) + ".txt";
    const Dataset dataset = prepare_dataset(streamed(text), small("cache"), *world, {.beat = kBeat});
    const TrainWindows windows = dataset.train_windows(kContext, 3);
    prepare_samples(*dataset.streamed->texts, windows, 0, kStep, *world, {.beat = kBeat});
    rows[static_cast<size_t>(world->rank())] = row(windows, kStep - 1);
  };
  run_thread_ranks(2, read, {.timeout = kPatience});
  EXPECT_FALSE(rows[0].empty());
  EXPECT_EQ(rows[0], rows[1]);
}

/// The rank that waits in work_jointly hears a stop, whichever rank tokenizes.
TEST_F(PrepareSamples, AStopEndsTheWaitOnEveryRank) {
  std::atomic<int> num_stopped{0};
  const auto read = [&](const std::shared_ptr<Communicator>& world) {
    const Dataset dataset = prepare_dataset(streamed(), small("cache"), *world, {.beat = kBeat});
    const TrainWindows windows = dataset.train_windows(kContext, 3);
    const JointWork work{.beat = kBeat, .stop_requested = [&] { return world->rank() == 1; }};
    EXPECT_THROW(prepare_samples(*dataset.streamed->texts, windows, 0, kStep, *world, work), Interrupted);
    ++num_stopped;
  };
  run_thread_ranks(2, read, {.timeout = kPatience});
  EXPECT_EQ(num_stopped, 2);
}

TEST_F(PrepareDataset, TheCacheIsTrimmedToItsLimit) {
  DataFolders limited = folders("cache");
  limited.cache_limit_bytes = 100'000;
  for (const size_t bytes : {40'000, 30'000, 20'000}) {
    write_file(folder / "text.txt", read_file(book_path()).substr(0, bytes));
    open_dataset(data(), limited);
  }
  // 2 bytes a token: 40,000 fit together with the 60,000 before, but not with these and the first 80,000.
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) bytes += entry.file_size();
  EXPECT_LE(bytes, 100'000 + 4 * 72);
  EXPECT_EQ(open_dataset(data(), limited).num_train_tokens(), 18'000);
}

TEST_F(PrepareDataset, FilesAreFoundWithAbsolutePaths) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::filesystem::path found = find_file("text.txt", {.home = {}, .cache = folder / "cache"});
  Recipe::Data relative{.text = {"text.txt", "missing.txt"}, .tokenizer = "bytes"};
  resolve_files(relative, {.home = {}, .cache = folder / "cache"});
  std::filesystem::current_path(before);
  EXPECT_EQ(found, std::filesystem::canonical(folder / "text.txt"));
  EXPECT_EQ(relative.text, (std::vector<std::string>{found.string(), "missing.txt"}));
  EXPECT_EQ(relative.tokenizer, "bytes");
}

TEST_F(PrepareDataset, APathThatIsNotUtf8IsRefused) {
  const std::string name = "caf\xe9";
  std::filesystem::create_directory(folder / name);
  write_file(folder / name / "text.txt", "text");
  Recipe::Data data{.text = {"text.txt"}, .tokenizer = "bytes"};
  EXPECT_THAT(message_of<UsageError>([&] { resolve_files(data, {.home = folder / name, .cache = folder / "c"}); }),
              HasSubstr("is not UTF-8"));
}

}  // namespace
}  // namespace caravan::prepare_test
