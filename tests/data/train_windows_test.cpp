#include "caravan/data/windows/train_windows.h"

#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/data/support.h"

namespace caravan::train_windows_test {
namespace {

using ::testing::HasSubstr;

/// Token i of the file is i.
TokenFile numbered_tokens(const TemporaryFolder& folder, int32_t count, const std::string& name = "numbered") {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  TokenFileWriter writer(folder / (name + ".tokens"), std::max(count, 1));
  writer.append(ids);
  writer.finish(3 * count, {});
  return TokenFile::open(folder / (name + ".tokens"));
}

TEST(TrainWindows, LabelsAreTheNextTokens) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 500);
  const Sampler sampler(500, 8, 5);
  const TrainWindows windows({{&tokens}}, 8, 5);
  std::vector<int64_t> inputs(24);
  std::vector<int64_t> labels(24);
  windows.fill(12, inputs, labels);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t t = 0; t < 8; ++t) {
      EXPECT_EQ(inputs[row * 8 + t], sampler.offset(12 + row) + t);
      EXPECT_EQ(labels[row * 8 + t], inputs[row * 8 + t] + 1);
    }
  }
  EXPECT_THROW(windows.fill(0, inputs, std::span(labels).first(16)), ShapeError);
  EXPECT_THROW(windows.fill(0, std::span(inputs).first(5), std::span(labels).first(5)), ShapeError);
}

/// Row r of the global batch does not depend on the rank that fills it, nor on accumulation.
TEST(TrainWindows, DoesNotDependOnRanks) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 3000);
  const TrainWindows windows({{&tokens}}, 8, 5);
  constexpr int64_t kBatch = 12;
  const auto rows_of = [&](int64_t step, int64_t first, int64_t count) {
    std::vector<int64_t> inputs(static_cast<size_t>(count * 8));
    std::vector<int64_t> labels(inputs.size());
    windows.fill(step * kBatch + first, inputs, labels);
    return inputs;
  };
  for (int64_t step = 0; step < 5; ++step) {
    const std::vector<int64_t> whole = rows_of(step, 0, kBatch);
    for (const int64_t ranks : {2, 3, 4, 12}) {
      std::vector<int64_t> joined;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const std::vector<int64_t> part = rows_of(step, rank * kBatch / ranks, kBatch / ranks);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, whole) << ranks << " ranks";
    }
  }
}

TEST(TrainWindows, APositionCountsTokens) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 3000);
  EXPECT_EQ(TrainWindows({{&tokens}}, 8, 5).position(7 * 12), 7 * 12 * 8);
}

TrainWindows mixture_of(const TokenFile& tokens, const std::vector<double>& weights) {
  std::vector<TrainSource> sources;
  for (const double weight : weights) sources.push_back({.tokens = &tokens, .weight = weight, .name = "a text"});
  return {sources, 8, 5};
}

/// Samples of each source are numbered in their order, none is left out, and after any number of samples each source
/// has its share, give or take one.
TEST(TrainWindows, SourcesTakeTurnsByTheirWeights) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 500);
  EXPECT_TRUE(rc::check("every stretch has its share", [&] {
    const auto whole = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 40));
    if (whole.empty()) return;
    const std::vector<double> weights(whole.begin(), whole.end());
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const TrainWindows windows = mixture_of(tokens, weights);
    std::vector<int64_t> next(weights.size());
    for (int64_t k = 0; k < 300; ++k) {
      RC_ASSERT(windows.drawn(k) == next);
      const TrainWindows::Draw draw = windows.draw(k);
      RC_ASSERT(draw.sample == next[draw.source]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double share = static_cast<double>(k + 1) * weights[i] / sum;
        RC_ASSERT(std::abs(static_cast<double>(next[i]) - share) < static_cast<double>(weights.size()));
      }
    }
  }));
}

TEST(TrainWindows, WeightsNeedNotBeWhole) {
  const TemporaryFolder folder;
  const TokenFile tokens = numbered_tokens(folder, 500);
  EXPECT_EQ(mixture_of(tokens, {0.7, 0.2, 0.1}).drawn(1000), (std::vector<int64_t>{700, 200, 100}));
  EXPECT_EQ(mixture_of(tokens, {1 / 3.0, 2 / 3.0}).drawn(10'000), (std::vector<int64_t>{3333, 6667}));
  EXPECT_EQ(mixture_of(tokens, {5e8, 5e8}).drawn(10), (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(mixture_of(tokens, {17}).drawn(10), (std::vector<int64_t>{10}));
  for (const double weight : {0.0, -1.0, 1e-5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message_of<DataError>([&] { mixture_of(tokens, {1, weight}); }), HasSubstr("a text: has a weight"));
  }
}

TEST(TrainWindows, RowsOfAMixtureAreThoseOfItsTexts) {
  const TemporaryFolder folder;
  const TokenFile first = numbered_tokens(folder, 500, "first");
  const TokenFile second = numbered_tokens(folder, 90, "second");
  const TrainWindows windows({{.tokens = &first, .weight = 3}, {.tokens = &second, .weight = 1}}, 8, 5);
  const TrainWindows alone({{&first}}, 8, 5);
  std::vector<int64_t> inputs(160), labels(160), of_first(120), labels_of_first(120);
  windows.fill(0, inputs, labels);
  alone.fill(0, of_first, labels_of_first);
  std::vector<int64_t> joined;
  std::set<int64_t> starts;
  for (int64_t row = 0; row < 20; ++row) {
    const auto begin = inputs.begin() + row * 8;
    if (windows.draw(row).source == 0) joined.insert(joined.end(), begin, begin + 8);
    if (windows.draw(row).source == 1) starts.insert(*begin);
  }
  EXPECT_EQ(joined, of_first) << "the first text is visited as if it were alone";
  EXPECT_EQ(starts.size(), 5U) << "no window of the other comes twice in an epoch";
  EXPECT_EQ(windows.num_targets(0, 20), 160);
  EXPECT_DOUBLE_EQ(windows.epochs(1, 10).value(), 1);
  EXPECT_THAT(message_of<DataError>([&] {
                TrainWindows({{&first}, {.tokens = &second, .name = "b.txt"}}, 90, 5);
              }),
              HasSubstr("the training text b.txt: has 90 tokens, but a window of context 90 needs 91"));
}

}  // namespace
}  // namespace caravan::train_windows_test
