#include "caravan/train/evaluate.h"

#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/comm/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan::testing {
namespace {

constexpr int64_t kContext = 4;

/// Its loss of a window is the sum of its labels: exact, and different for every window.
class SumOfLabels final : public Module {
 public:
  int num_forwards = 0;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext&) override {
    ++num_forwards;
    EXPECT_GT(inputs[0].size(0), 0);
    const at::Tensor& labels = inputs[1];
    return {labels.where(labels.ne(kNoTarget), at::zeros_like(labels)).sum().to(at::kDouble)};
  }
};

/// 10 windows of 4 targets: token i has the id i.
class Evaluate : public ::testing::Test {
 protected:
  Evaluate() {
    TokenFileWriter writer(folder / "t.tokens", 41);
    std::vector<int32_t> ids(41);
    std::iota(ids.begin(), ids.end(), 0);
    writer.append(ids);
    writer.finish(82, {});
  }

  /// The sum of the labels of these windows.
  static double sum_of(const std::vector<int64_t>& chosen) {
    double sum = 0;
    for (const int64_t window : chosen) {
      for (int64_t t = 1; t <= kContext; ++t) sum += static_cast<double>(window * kContext + t);
    }
    return sum;
  }

  struct Outcome {
    std::vector<std::optional<Evaluation>> results;
    std::vector<int> num_forwards;
  };
  Outcome on_ranks(int ranks, const EvaluationOptions& options, int stopping = -1) const {
    const TokenFile tokens = TokenFile::open(folder / "t.tokens");
    const ValidationWindows windows(tokens, kContext);
    Outcome outcome{.results = std::vector<std::optional<Evaluation>>(static_cast<size_t>(ranks)),
                    .num_forwards = std::vector<int>(static_cast<size_t>(ranks))};
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
                       SumOfLabels model;
                       EvaluationOptions own = options;
                       if (world->rank() == stopping) own.stop_requested = [&] { return model.num_forwards == 2; };
                       const auto rank = static_cast<size_t>(world->rank());
                       outcome.results[rank] = evaluate(model, windows, mesh["dp"], own);
                       outcome.num_forwards[rank] = model.num_forwards;
                     },
                     {.timeout = std::chrono::seconds(20)});
    return outcome;
  }

  const TemporaryFolder folder;
};

TEST_F(Evaluate, EveryRankMakesTheSameForwardPasses) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t rows : {1, 2, 3}) {
      const Outcome outcome = on_ranks(ranks, {.rows = rows});
      const int rounds = static_cast<int>((10 + ranks * rows - 1) / (ranks * rows));
      for (const int forwards : outcome.num_forwards) EXPECT_EQ(forwards, rounds) << ranks << " x " << rows;
      for (const auto& result : outcome.results) {
        ASSERT_TRUE(result);
        EXPECT_DOUBLE_EQ(result->loss, 820.0 / 40);
        EXPECT_DOUBLE_EQ(result->bits_per_byte, 820.0 / std::log(2.0) / 82);
      }
    }
  }
}

TEST_F(Evaluate, ABoundTakesWindowsFromTheWholeText) {
  const Outcome outcome = on_ranks(3, {.rows = 1, .max_windows = 4});
  const double loss = sum_of({0, 2, 5, 7}) / 16;
  for (const auto& result : outcome.results) {
    ASSERT_TRUE(result);
    EXPECT_DOUBLE_EQ(result->loss, loss);
    EXPECT_DOUBLE_EQ(result->bits_per_byte, loss * 40 / std::log(2.0) / 82);
  }
  EXPECT_EQ(outcome.num_forwards, (std::vector<int>{2, 2, 2}));
  EXPECT_DOUBLE_EQ(on_ranks(2, {.rows = 2, .max_windows = 50}).results[0]->loss, 820.0 / 40);
}

TEST_F(Evaluate, ARequestToStopEndsItOnEveryRank) {
  for (const int stopping : {0, 2}) {
    const Outcome outcome = on_ranks(3, {.rows = 1}, stopping);
    for (const auto& result : outcome.results) EXPECT_FALSE(result);
    EXPECT_EQ(outcome.num_forwards, (std::vector<int>{2, 2, 2}));
  }
}

TEST_F(Evaluate, ReportsEachRound) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  on_ranks(1, {.rows = 4, .progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); }});
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 3}, {2, 3}}));
}

}  // namespace
}  // namespace caravan::testing
