#include "caravan/data/windows/streamed_windows.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/data/windows/cache.h"
#include "caravan/data/windows/train_windows.h"
#include "tests/data/support.h"

namespace caravan::streamed_windows_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kContext = 16;
constexpr uint64_t kSeed = 5;
constexpr int64_t kShard = 300;

/// The order of a streamed text, from the whole text in memory. A token is a byte.
class Reference {
 public:
  explicit Reference(const std::vector<std::string>& files, uint64_t seed = kSeed) : shards_(1), seed_(seed) {
    for (const std::string& file : files) {
      std::istringstream lines(file);
      for (std::string line; std::getline(lines, line);) {
        if (static_cast<int64_t>(shards_.back().size()) >= kShard) shards_.emplace_back();
        shards_.back() += lines.eof() ? line : line + '\n';
      }
    }
  }
  std::string window(int64_t sample) const {
    for (int64_t epoch = 0;; ++epoch) {
      for (size_t shard = 0; shard < shards_.size(); ++shard) {
        const int64_t count = num_windows(shards_[shard]);
        if (sample < count) return window_of(shard, epoch, sample);
        sample -= count;
      }
    }
  }
  int64_t windows_per_epoch() const {
    int64_t count = 0;
    for (const std::string& shard : shards_) count += num_windows(shard);
    return count;
  }
  size_t num_shards() const { return shards_.size(); }

 private:
  static int64_t num_windows(const std::string& shard) {
    const auto tokens = static_cast<int64_t>(shard.size());
    return tokens <= kContext ? 0 : std::max<int64_t>(1, (tokens - 1) / kContext - 1);
  }
  std::string window_of(size_t shard, int64_t epoch, int64_t index) const {
    const uint64_t seed = seed_ + 0xD1B54A32D192ED03 * shard;
    const auto count = static_cast<uint64_t>(num_windows(shards_[shard]));
    const RandomStream phases(seed, "data.phase", epoch);
    const uint64_t num_phases = shards_[shard].size() - count * kContext;
    const uint64_t phase = (uint64_t{phases.bits(0)} << 32 | phases.bits(1)) % num_phases;
    const RandomPermutation order(seed, "data.order", epoch, count);
    return shards_[shard].substr(phase + order(static_cast<uint64_t>(index)) * kContext, kContext + 1);
  }

  std::vector<std::string> shards_;
  uint64_t seed_;
};

class StreamedWindowsTest : public ::testing::Test {
 protected:
  StreamedWindowsTest() {
    const std::string book = read_file(book_path());
    texts_ = {book.substr(0, 3000), book.substr(3000, 40), book.substr(4000, 2500)};
    for (size_t i = 0; i < texts_.size(); ++i) write_file(folder / std::to_string(i), texts_[i]);
  }
  std::unique_ptr<TokenStreams> open(const std::vector<std::vector<int>>& sources,
                                     TokenStreams::Options options = {}) const {
    std::vector<TokenStreams::Text> texts;
    for (const std::vector<int>& files : sources) {
      std::vector<fs::path> paths;
      for (const int file : files) paths.push_back(folder / std::to_string(file));
      texts.push_back({StreamedText(paths, {.shard_bytes = kShard}), "text" + std::to_string(texts.size())});
    }
    if (options.cache.empty()) options.cache = folder / "cache";
    return std::make_unique<TokenStreams>(std::move(texts), Tokenizer::bytes(), options);
  }
  static TrainWindows windows_of(TokenStreams& streams, const std::vector<double>& weights = {1}) {
    std::vector<TrainSource> sources;
    for (const double weight : weights) sources.push_back({.tokens = nullptr, .weight = weight, .streams = &streams});
    return {sources, kContext, kSeed};
  }
  /// The tokens of a sample, with the last target.
  static std::string row(const TrainWindows& windows, int64_t sample) {
    std::vector<int64_t> inputs(kContext), labels(kContext);
    windows.fill(sample, inputs, labels);
    inputs.push_back(labels.back());
    return {inputs.begin(), inputs.end()};
  }
  int64_t count_files(const std::string& ending) const {
    return std::ranges::count_if(fs::directory_iterator(folder / "cache"),
                                 [&](const auto& entry) { return entry.path().extension() == ending; });
  }

  const TemporaryFolder folder;
  std::vector<std::string> texts_;
};

TEST_F(StreamedWindowsTest, TheOrderMatchesTheWholeText) {
  const Reference reference(texts_);
  ASSERT_GT(reference.num_shards(), 10U);
  const auto streams = open({{0, 1, 2}});
  const TrainWindows windows = windows_of(*streams);
  const int64_t epoch = reference.windows_per_epoch();
  for (int64_t k = 0; k < 2 * epoch + 20; ++k) ASSERT_EQ(row(windows, k), reference.window(k)) << k;
  EXPECT_EQ(windows.epochs(0, 3 * epoch), 3.0);
  // Another process that begins in the second epoch, and goes back.
  const auto later = open({{0, 1, 2}});
  const TrainWindows same = windows_of(*later);
  for (const int64_t k : {epoch + 37, epoch + 3, epoch - 1, int64_t{0}}) EXPECT_EQ(row(same, k), reference.window(k));
}

/// Neither the split of batches over ranks or steps nor the rank that tokenizes changes the rows.
TEST_F(StreamedWindowsTest, RanksReadWhatOneTokenizes) {
  const Reference reference(texts_);
  const auto builder = open({{0, 1, 2}});
  const TrainWindows prepared = windows_of(*builder);
  prepared.prepare(0, 200);
  const std::string records = builder->take_new_records();
  EXPECT_EQ(builder->take_new_records(), "");
  for (const int64_t ranks : {2, 3}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto streams = open({{0, 1, 2}}, {.cache = folder / "cache", .builds = rank == 0});
      streams->add_records(records);
      const TrainWindows windows = windows_of(*streams);
      for (int64_t k = rank; k < 200; k += ranks) ASSERT_EQ(row(windows, k), reference.window(k)) << k;
    }
  }
}

TEST_F(StreamedWindowsTest, SourcesOfAMixtureAreVisitedAsIfAlone) {
  const Reference first({texts_[0]});
  const Reference second({texts_[2]}, kSeed + 0x9E3779B97F4A7C15);
  const auto streams = open({{0}, {2}});
  const TrainWindows windows = windows_of(*streams, {3, 1});
  for (const int64_t begin : {600, 0}) {  // the second time as if resumed
    for (int64_t k = begin; k < begin + 100; ++k) {
      const TrainWindows::Draw draw = windows.draw(k);
      ASSERT_EQ(row(windows, k), (draw.source == 0 ? first : second).window(draw.sample)) << k;
    }
  }
}

/// The next process uses what a killed process has finished, and makes the rest.
TEST_F(StreamedWindowsTest, KilledWhileTokenizing) {
  const Reference reference(texts_);
  open({{0, 1, 2}})->record(0, 2);
  const int64_t finished = count_files(".shard");
  EXPECT_GE(finished, 3);
  EXPECT_LT(finished, static_cast<int64_t>(reference.num_shards()));
  write_file(folder / "cache/0123456789abcdef0123456789abcdef.shard", "caravan-shard-1 12 3");
  const auto streams = open({{0, 1, 2}});
  const TrainWindows windows = windows_of(*streams);
  const int64_t epoch = reference.windows_per_epoch();
  for (int64_t k = 0; k < epoch; ++k) ASSERT_EQ(row(windows, k), reference.window(k)) << k;
}

/// A record with other tokens, another end or another successor is made again, like a missing one.
TEST_F(StreamedWindowsTest, DamagedRecordsAreRebuilt) {
  const Reference reference(texts_);
  open({{0, 1, 2}})->record(0, 2);
  std::map<fs::path, std::string> whole;
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".shard") whole[entry.path()] = read_file(entry.path());
  }
  ASSERT_GE(whole.size(), 3U);
  for (size_t place = 0; place < whole.begin()->second.size(); place += 3) {
    for (auto [path, text] : whole) {
      char& changed = text[std::min(place, text.size() - 1)];
      changed = changed == '0' ? '1' : '0';
      write_file(path, text);
    }
    const auto streams = open({{0, 1, 2}});
    const TrainWindows windows = windows_of(*streams);
    for (int64_t k = 0; k < reference.windows_per_epoch(); k += 5) ASSERT_EQ(row(windows, k), reference.window(k));
  }
}

/// A resumed run needs the records of the shards before its place, not their tokens.
TEST_F(StreamedWindowsTest, EarlierShardsAreNotTokenizedAgain) {
  const Reference reference(texts_);
  const int64_t sample = reference.windows_per_epoch() - 1;
  EXPECT_EQ(row(windows_of(*open({{0, 1, 2}})), sample), reference.window(sample));
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".tokens") fs::remove(entry.path());
  }
  auto streams = open({{0, 1, 2}});
  EXPECT_EQ(row(windows_of(*streams), sample), reference.window(sample));
  EXPECT_EQ(count_files(".tokens"), 1);
  streams.reset();  // it may still write
  fs::remove_all(folder / "cache");
  EXPECT_EQ(row(windows_of(*open({{0, 1, 2}})), sample), reference.window(sample)) << "without records, too";
}

/// Few shards are open, and few are tokenized before they are needed.
TEST_F(StreamedWindowsTest, MemoryAndWorkAreBounded) {
  const auto streams = open({{0, 1, 2}}, {.cache = folder / "cache", .num_ahead = 2});
  StreamedWindows windows(*streams, 0, kContext, kSeed, {});
  int64_t most = 0;
  for (int64_t k = 0; k < 60; ++k) {
    const auto row = windows.row(k);
    most = std::max(most, windows.num_open());
    EXPECT_LE(streams->num_known(0), row.shard->index + 3);
  }
  EXPECT_EQ(most, static_cast<int64_t>(StreamedWindows::kMostOpen));
}

/// A cache that keeps no file beyond those in use.
TEST_F(StreamedWindowsTest, ATrimmedCacheOnlyCostsTime) {
  const Reference reference(texts_);
  const auto streams = open({{0, 1, 2}}, {.cache = folder / "cache", .cache_limit_bytes = 0, .num_ahead = 1});
  const TrainWindows windows = windows_of(*streams);
  for (int64_t k = 0; k < 2 * reference.windows_per_epoch(); k += 5) {
    ASSERT_EQ(row(windows, k), reference.window(k)) << k;
  }
  EXPECT_LT(count_files(".tokens"), 8);
}

/// A cache that may keep nothing cannot take the shards of a step from any rank, in the first epoch and in later ones.
TEST_F(StreamedWindowsTest, PreparedShardsStayUntilTheNextPreparation) {
  const Reference reference(texts_);
  constexpr int64_t step = 150;  // shards have 17 to 50 windows, for long lines
  const auto builder = open({{0, 1, 2}}, {.cache = folder / "cache", .cache_limit_bytes = 1, .num_ahead = 1});
  const auto reader = open({{0, 1, 2}}, {.cache = folder / "cache", .builds = false});
  StreamedWindows built(*builder, 0, kContext, kSeed, {});
  StreamedWindows read(*reader, 0, kContext, kSeed, {});
  for (int64_t first = 0; first < 2 * reference.windows_per_epoch(); first += step) {
    const auto seen = built.prepare(first, first + step);
    EXPECT_GT(seen.size(), StreamedWindows::kMostOpen);
    EXPECT_EQ(built.num_open(), static_cast<int64_t>(seen.size()));
    trim_cache(folder / "cache", 1);  // as another job does
    reader->add_records(builder->take_new_records());
    EXPECT_EQ(read.prepare(first, first + step).size(), seen.size());
    trim_cache(folder / "cache", 1);
    // The shards of the step, and those that the builder keeps ahead of the furthest rank.
    EXPECT_LE(count_files(".tokens"), static_cast<int64_t>(seen.size()) + 4);
    for (int64_t k = first; k < first + step; k += 3) {
      const auto row = read.row(k);
      std::vector<int64_t> tokens(kContext + 1);
      row.shard->tokens.read(row.pieces.front().first, tokens);
      ASSERT_EQ(std::string(tokens.begin(), tokens.end()), reference.window(k)) << k;
    }
  }
}

TEST_F(StreamedWindowsTest, PreparedSamplesCoverWholeShards) {
  const auto streams = open({{0}});
  const TrainWindows windows = windows_of(*streams);
  EXPECT_FALSE(windows.is_ready(1));
  const auto seen = windows.prepare(0, 30);
  ASSERT_EQ(seen.size(), 2U) << "of 17 windows or more each";
  EXPECT_EQ(seen[1].name, "shard 1 of training text 0");
  EXPECT_NE(seen[0].content, seen[1].content);
  EXPECT_TRUE(windows.is_ready(34));
  EXPECT_FALSE(windows.is_ready(100));
}

TEST_F(StreamedWindowsTest, DocumentsArePackedInsideAShard) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"" + std::string(static_cast<size_t>(3 + i % 11), 'a') + "\"}\n";
  write_file(folder / "7", lines);
  const auto streams = open({{7}});
  // The byte 'a' ends documents as an end-of-text token would.
  StreamedWindows windows(*streams, 0, kContext, kSeed, PackRule{.end_of_text = 'a'});
  const auto row = windows.row(3);
  ASSERT_TRUE(row.shard->documents);
  EXPECT_EQ(row.shard->documents->num_ends(row.pieces.front().first, kContext), kContext);
}

/// Rows of one shard have its whole documents, here those between two spaces, each once an epoch; ranks that read have
/// the same as the one that builds, and a process that resumes needs no tokens of earlier shards.
TEST_F(StreamedWindowsTest, WholeDocumentsStayInAShard) {
  const TokenStreams::Options options{.cache = folder / "cache", .fill = FillRule{' ', kContext}};
  const auto builder = open({{0, 1, 2}}, options);
  StreamedWindows windows(*builder, 0, kContext, kSeed, {});
  const Reference reference(texts_);
  std::vector<std::string> rows;
  std::vector<int64_t> sizes;
  for (int64_t k = 0; !windows.rows_per_epoch() || k < 2 * *windows.rows_per_epoch(); ++k) {
    const auto row = windows.row(k);
    if (row.shard->index == static_cast<int64_t>(sizes.size())) sizes.push_back(row.shard->whole->size());
    std::string& text = rows.emplace_back();
    for (const TextPiece& piece : row.pieces) {
      std::vector<int64_t> ids(static_cast<size_t>(piece.count));
      row.shard->tokens.read(piece.first, ids);
      text.append(ids.begin(), ids.end());
      EXPECT_TRUE(!piece.is_end || ids.back() == ' ' || piece.first + piece.count == row.shard->tokens.size());
    }
    EXPECT_LE(text.size(), static_cast<size_t>(kContext));
  }
  ASSERT_EQ(sizes.size(), reference.num_shards());
  EXPECT_EQ(windows.rows_per_epoch(), std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  const auto middle = rows.begin() + std::ssize(rows) / 2;
  EXPECT_FALSE(std::equal(rows.begin(), middle, middle)) << "epochs differ in order";
  std::sort(rows.begin(), middle);
  std::sort(middle, rows.end());
  EXPECT_TRUE(std::equal(rows.begin(), middle, middle)) << "and not in rows";

  const TrainWindows built = windows_of(*builder);
  built.prepare(0, 200);
  TokenStreams::Options reads = options;
  reads.builds = false;
  const auto reader = open({{0, 1, 2}}, reads);
  reader->add_records(builder->take_new_records());
  const TrainWindows read = windows_of(*reader);
  for (int64_t k = 0; k < 200; k += 3) EXPECT_EQ(row(read, k), row(built, k));
  EXPECT_EQ(read.num_targets(0, 100), built.num_targets(0, 100));

  const int64_t tokens = count_files(".tokens");
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".tokens") fs::remove(entry.path());
  }
  const auto later = open({{0, 1, 2}}, options);
  const int64_t last = std::ssize(rows) / 2 - 1;
  EXPECT_EQ(row(windows_of(*later), last), row(built, last));
  EXPECT_LT(count_files(".tokens"), tokens) << "of the records";
  EXPECT_THROW(StreamedWindows(*builder, 0, kContext - 1, kSeed, {}), InternalError);
}

TEST_F(StreamedWindowsTest, ErrorsOfLaterShardsComeWhenTheyAreNeeded) {
  write_file(folder / "8", texts_[0] + "a\xff\n" + texts_[2]);
  const auto line = std::to_string(std::ranges::count(texts_[0], '\n') + 1);
  const auto streams = open({{8}}, {.cache = folder / "cache", .num_ahead = 100});
  const TrainWindows windows = windows_of(*streams);
  for (int64_t k = 0; k < 10; ++k) row(windows, k);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of<DataError>([&] { row(windows, 400); }), HasSubstr("8:" + line + ": is not text in UTF-8"));
  }
  write_file(folder / "9", "short");
  EXPECT_THAT(message_of<DataError>([&] { row(windows_of(*open({{9}})), 0); }), HasSubstr("has no shard of 17 tokens"));
}

/// A process that does not build never waits.
TEST_F(StreamedWindowsTest, AReaderWithoutRecordsOrFilesGetsAnError) {
  const auto reader = open({{0}}, {.cache = folder / "other", .builds = false});
  EXPECT_THAT(message_of<ResourceError>([&] { row(windows_of(*reader), 0); }),
              HasSubstr("shard 0 of text0: was requested before the ranks prepared it together"));
  const auto builder = open({{0}});
  builder->open(0, 0);
  reader->add_records(builder->take_new_records());
  EXPECT_THAT(message_of<ResourceError>([&] { row(windows_of(*reader), 0); }),
              AllOf(HasSubstr("shard 0 of text0: is not in the cache"), HasSubstr("other/")));
}

}  // namespace
}  // namespace caravan::streamed_windows_test
