#include "caravan/train/evaluation/evaluate.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/data/windows/sampler.h"
#include "caravan/data/windows/token_file.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"
#include "tests/mesh/refusal.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::evaluate_test {
namespace {

constexpr int64_t kContext = 4;

/// The loss of a window is the sum of its labels: exact, and different for every window.
double sum_of_labels(const at::Tensor& ids, const at::Tensor& labels) {
  EXPECT_GT(ids.size(0), 0);
  return static_cast<double>(labels.where(labels.ne(kIgnoredLabel), at::zeros_like(labels)).sum().item<int64_t>());
}

/// The same as a model, of one unit with a parameter of value 1 that the loss is multiplied by.
class SumOfLabels final : public Module {
 public:
  int num_forwards = 0;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    ++num_forwards;
    EXPECT_EQ(context.phase, Phase::evaluate);
    EXPECT_FALSE(at::GradMode::is_enabled());
    return {one_.compute().to(at::kDouble) * sum_of_labels(inputs.at(0), inputs.at(1))};
  }

 private:
  Parameter& one_ = register_parameter("one", {.shape = {}, .init = {Init::Kind::ones}});
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
                       const auto rank = static_cast<size_t>(world->rank());
                       int& forwards = outcome.num_forwards[rank];
                       EvaluationOptions own = options;
                       if (world->rank() == stopping) own.stop_requested = [&] { return forwards == 2; };
                       const auto loss = [&](const at::Tensor& ids, const at::Tensor& labels, const ForwardContext&) {
                         ++forwards;
                         return sum_of_labels(ids, labels);
                       };
                       const EvaluationPart part{.world = *world, .part = world->rank(), .num_parts = ranks};
                       outcome.results[rank] = evaluate(loss, windows, part, own);
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

/// Among ranks that get the same rows, one counts: those of a tensor axis compute one loss together.
TEST_F(Evaluate, OfAnEngineIsSplitOverItsDataAxesOnly) {
  const TokenFile tokens = TokenFile::open(folder / "t.tokens");
  const ValidationWindows windows(tokens, kContext);
  for (const auto& axes : std::vector<std::vector<AxisSize>>{{{"dp", 1}}, {{"dp", 3}}, {{"dp", 2}, {"tp", 2}}}) {
    const int data_ranks = axes[0].size;
    const int ranks = axes.size() == 1 ? data_ranks : 2 * data_ranks;
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const Mesh mesh = Mesh::create(world, axes);
                       SumOfLabels model;
                       Strategy strategy = whole_model(model, mesh);
                       add_data_axis(strategy, mesh, "dp");
                       Engine engine(model, mesh, strategy);
                       for (int again = 0; again < 2; ++again) {
                         const auto result = evaluate(engine, windows, {.rows = 2});
                         ASSERT_TRUE(result);
                         EXPECT_DOUBLE_EQ(result->loss, 820.0 / 40);
                       }
                       EXPECT_EQ(model.num_forwards, 2 * ((10 + 2 * data_ranks - 1) / (2 * data_ranks)));
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

/// With a whole model on every rank and overlapping windows: the same as one target at a time, from the inputs of its
/// window.
TEST_F(Evaluate, OfAWholeModelMatchesEachTargetAlone) {
  constexpr int64_t kWidth = 8, kStride = 3;
  const ModelConfig config{.layers = 1, .width = 16, .heads = 2, .context = kWidth, .vocabulary = 41};
  const TokenFile tokens = TokenFile::open(folder / "t.tokens");
  const ValidationWindows windows(tokens, kWidth, nullptr, kStride);
  double nats = 0;
  {
    const at::NoGradGuard no_grad;
    const auto model = whole_model(config);
    for (int64_t target = 1; target <= 40; ++target) {
      const int64_t first = target <= kWidth ? 0 : (target - kWidth + kStride - 1) / kStride * kStride;
      const at::Tensor ids = at::arange(first, target, at::kLong).unsqueeze(0);
      const at::Tensor logits = model->run({ids}, {.phase = Phase::evaluate}).front()[0][-1];
      nats -= at::log_softmax(logits.to(at::kDouble), 0)[target].item<double>();
    }
  }
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t rows : {1, 4}) {
      run_thread_ranks(ranks,
                       [&](const std::shared_ptr<Communicator>& world) {
                         const auto model = whole_model(config);
                         const auto result = evaluate(*model, *world, windows, {.rows = rows});
                         ASSERT_TRUE(result);
                         EXPECT_NEAR(result->loss, nats / 40, 1e-6 * nats / 40) << ranks << " x " << rows;
                       },
                       {.timeout = std::chrono::seconds(20)});
    }
  }
}

/// Marks of chats: the tokens of windows 5 to 9 are targets.
TEST_F(Evaluate, WindowsWithoutTargetsAreRefusedBeforeARun) {
  TokenFileWriter writer(folder / "t.marks", 41);
  std::vector<int32_t> marks(41, 0);
  std::fill(marks.begin() + 21, marks.end(), 1);
  writer.append(marks);
  writer.finish(82, {});
  const TokenFile tokens = TokenFile::open(folder / "t.tokens"), targets = TokenFile::open(folder / "t.marks");
  const ValidationWindows windows(tokens, kContext, nullptr, {}, &targets);
  EXPECT_NO_THROW(check_targets(windows, 0));
  EXPECT_NO_THROW(check_targets(windows, 2));  // windows 0 and 5
  EXPECT_THAT(refusal<DataError>([&] { check_targets(windows, 1); }),
              ::testing::HasSubstr("no token of the 1 of 10 windows"));
}

TEST_F(Evaluate, ReportsEachRound) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  on_ranks(1, {.rows = 4, .progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); }});
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 3}, {2, 3}}));
}

}  // namespace
}  // namespace caravan::testing::evaluate_test
