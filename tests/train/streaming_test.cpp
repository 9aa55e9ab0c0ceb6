#include <atomic>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/train/folder/run_folder.h"
#include "tests/ranks/process_ranks.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::streaming_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Runs on a text in shards of 13 windows or so: a step of 36 samples needs three, an epoch is 18 steps.
TrainOptions streaming_options(const TinyRuns& runs, const std::string& dir, std::vector<std::string> set = {},
                               const std::string& cache = "cache") {
  set.insert(set.begin(), {"data.streaming=true", "train.steps=30", "train.eval_every=10"});
  TrainOptions options{.recipe = runs.recipe(Architecture::gpt2(), dir, set), .folders = runs.folders()};
  options.folders.shard_bytes = 110;
  options.folders.cache = runs / cache;
  return options;
}

class Streaming : public ::testing::Test {
 protected:
  TrainOptions options(const std::string& dir, std::vector<std::string> set = {}, const std::string& cache = "cache") {
    return streaming_options(runs_, dir, std::move(set), cache);
  }
  const TinyRuns runs_;
};

TEST_F(Streaming, LossesAreIndependentOfRanksAndAccumulation) {
  train_on(1, options("one"));
  for (const auto& [ranks, accumulation] : {std::pair{1, 4}, {2, 3}, {3, 1}}) {
    const std::string dir = "run" + std::to_string(ranks);
    // Each rank has its own cache: the shards are tokenized while the ranks train.
    train_on(ranks, options(dir, {micro_batch(ranks, accumulation)}, "cache-" + dir));
    const std::vector<double> one = losses(runs_ / "one");
    const std::vector<double> run = losses(runs_ / dir);
    ASSERT_EQ(run.size(), one.size());
    for (size_t step = 0; step < run.size(); ++step) {
      EXPECT_NEAR(run[step], one[step], 1e-4) << ranks << " ranks, step " << step << ": fp32 sums in another order";
    }
  }
}

/// The workers of a server read up to `staleness` steps past a drain.
TEST_F(Streaming, WorkersAreAheadOfADrainOnly) {
  TrainOptions run = options("bounded", {"data_parallel.technique=param_server", "data_parallel.mode=bounded",
                                         "data_parallel.staleness=3", "data_parallel.drain=5", "train.steps=20"});
  run.folders.cache_limit_bytes = 1;
  train_on(3, run);
  EXPECT_EQ(step_of(find_checkpoint(runs_ / "bounded")), 20);
}

TEST_F(Streaming, AResumedRunContinuesWhereItStopped) {
  write_file(runs_ / "more.txt", read_file(runs_ / "text.txt").substr(1000, 2000));
  const std::vector<DataSource> sources{{.path = "text.txt", .weight = 2}, {.path = "more.txt"}};
  for (const std::string dir : {"text", "mixture"}) {
    const auto of = [&](const std::string& run) {
      TrainOptions made = options(dir + "-" + run);
      if (dir == "text") return made;
      made.recipe.data.text = Recipe{}.data.text;
      made.recipe.locations.erase("data.text");
      made.recipe.data.sources = sources;
      return made;
    };
    train_on(2, of("whole"));
    for (const int64_t stop : {7, 21}) {  // in the middle of a shard, of the first and of a later epoch
      TrainOptions parts = of("parts" + std::to_string(stop));
      parts.stop_after = stop;
      train_on(2, parts);
      parts.stop_after.reset();
      parts.resume = true;
      parts.folders.cache = runs_ / ("cold" + std::to_string(stop));
      train_on(2, parts);
      const fs::path run = parts.recipe.checkpoint.dir;
      EXPECT_EQ(log_lines(run), log_lines(runs_ / (dir + "-whole"))) << dir << ", stopped after " << stop;
      EXPECT_EQ(first_difference(checkpoint_tensors(run), checkpoint_tensors(runs_ / (dir + "-whole"))), "");
    }
  }
}

TEST_F(Streaming, AResumedRunRefusesAnotherOrder) {
  TrainOptions run = options("run");
  run.stop_after = 2;
  train_on(1, run);
  run.stop_after.reset();
  run.resume = true;
  run.recipe.data.streaming = false;
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, run); }),
              HasSubstr("data.streaming: is false, but the run was trained with true"));
  run.recipe.data.streaming = true;
  write_file(runs_ / "text.txt", read_file(runs_ / "text.txt") + "more.\n");
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, run); }), HasSubstr("data.text: is another text"));
}

/// The steps before the bad line are kept, and every rank ends.
TEST_F(Streaming, ABadLineLeavesACheckpointOfTheStepBefore) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"call me number " + std::to_string(i) + "\"}\n";
  for (int i = 0; i < 20; ++i) lines += "{\"txt\": \"me\"}\n";
  write_file(runs_ / "bad.jsonl", lines);
  write_file(runs_ / "held_out.txt", "call me Ishmael");
  const TrainOptions run = options("bad", {"data.text=bad.jsonl", "data.validation=held_out.txt"});
  std::atomic<int> num_told{0};
  run_thread_ranks(2, [&](const auto& world) {
    const auto run_rank = [&] { train(run, world); };
    const std::string message =
        world->rank() == 0 ? message_of<DataError>(run_rank) : message_of<PeerFailure>(run_rank);
    EXPECT_THAT(message, HasSubstr("bad.jsonl:201: has no field text"));
    ++num_told;
  });
  EXPECT_EQ(num_told, 2);
  const auto steps = static_cast<int64_t>(losses(runs_ / "bad").size());
  EXPECT_GT(steps, 5);
  EXPECT_EQ(step_of(find_checkpoint(runs_ / "bad")), steps);
}

TEST_F(Streaming, HostsWithDifferentTextsGetAnError) {
  // Beginning, end and size are the same; only what is in between tells them apart.
  std::string text;
  for (int line = 0; line < 400; ++line) text += std::string(99, 'a') + '\n';
  for (const std::string host : {"0", "1"}) {
    text[16'500] = host.front();
    write_file(runs_ / ("text" + host), text);
  }
  write_file(runs_ / "held_out.txt", "call me Ishmael");
  run_thread_ranks(2, [&](const auto& world) {
    const std::string host = std::to_string(world->rank());
    TrainOptions run =
        options("apart", {"data.text=text" + host, "data.validation=held_out.txt", "train.steps=80"}, "cache" + host);
    run.folders.shard_bytes = 1000;
    EXPECT_THAT(message_of<DataError>([&] { train(run, world); }),
                AllOf(HasSubstr("shard 16 of training text 0: has another content"), HasSubstr("on rank 1")));
  });
}

/// Trains on all ranks, which are processes with their own texts and one cache that may keep nothing, and compares with
/// one process. A step has at least four shards.
void expect_one_process_with_a_small_cache(const std::shared_ptr<Communicator>& world) {
  const TinyRuns runs;
  const auto small = [&](const std::string& dir) {
    TrainOptions options = streaming_options(runs, dir, {"train.steps=24"}, "cache-" + dir);
    options.folders.shard_bytes = 80;
    options.folders.cache_limit_bytes = 1;
    return options;
  };
  const TrainOptions one = small("one");
  TrainOptions three = small("three");
  three.recipe.checkpoint.dir = broadcast_text(*world, three.recipe.checkpoint.dir, 0);
  three.folders.cache = broadcast_text(*world, three.folders.cache.string(), 0);
  train(three, world);
  if (world->rank() == 0) {
    train_on(1, one);
    const std::vector<double> want = losses(one.recipe.checkpoint.dir);
    const std::vector<double> found = losses(three.recipe.checkpoint.dir);
    ASSERT_EQ(want.size(), 24U);
    ASSERT_EQ(found.size(), want.size());
    for (size_t step = 0; step < want.size(); ++step) {
      EXPECT_NEAR(found[step], want[step], 1e-4) << "step " << step << ": fp32 sums in another order";
    }
  }
  gather_texts(*world, "done");  // the folder is that of rank 0
}

TEST(StreamingProcesses, ShareACacheThatIsTooSmallForAStep) {
  run_process_ranks(3, expect_one_process_with_a_small_cache, CommOptions{.timeout = std::chrono::seconds(20)});
}

/// Copies of one text on one host, with other times: one rank tokenizes its copy for all.
TEST_F(Streaming, RanksOfAHostMayHaveCopies) {
  for (const std::string copy : {"0", "1"}) write_file(runs_ / ("text" + copy), read_file(runs_ / "text.txt"));
  fs::last_write_time(runs_ / "text1", fs::file_time_type{});
  const auto of = [&](const std::string& dir, int rank) {
    return options(dir, {"data.text=text" + std::to_string(rank), "train.steps=8"});
  };
  run_thread_ranks(2, [&](const auto& world) { train(of("copies", world->rank()), world); });
  EXPECT_EQ(losses(runs_ / "copies").size(), 8U);
  write_file(runs_ / "text1", "x" + read_file(runs_ / "text.txt").substr(1));
  run_thread_ranks(2, [&](const auto& world) {
    EXPECT_THAT(message_of<DataError>([&] { train(of("apart", world->rank()), world); }),
                AllOf(HasSubstr("file 0 of training text 0"), HasSubstr("bytes on rank 0 and"),
                      HasSubstr("text" + std::to_string(world->rank()))));
  });
  EXPECT_FALSE(fs::exists(runs_ / "apart"));
}

}  // namespace
}  // namespace caravan::testing::streaming_test
