// Losses over a cut batch, and over cut classes, are those of one process; over cut classes nothing is gathered.
#include <functional>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/global/global.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::losses_test {
namespace {

/// 1e-12: fp64 sums of fewer than 100 terms of the size of 1, in another order.
constexpr double kRounding = 1e-12;

struct Entropy {
  bool has_weight = false;
  double smoothing = 0;
  int64_t ignored = -100;
  int64_t reduction = at::Reduction::Mean;
};

at::Tensor targets(int64_t num, int64_t num_classes) { return at::arange(num).mul(5).remainder(num_classes); }

struct LossAndGradient {
  at::Tensor loss, grad;
};

LossAndGradient cross_entropy(const Entropy& entropy, const at::Tensor& logits, const at::Tensor& target,
                              const at::Tensor& weight) {
  const at::Tensor x = logits.detach().requires_grad_(true);
  const at::Tensor loss = at::cross_entropy_loss(x, target, entropy.has_weight ? std::optional(weight) : std::nullopt,
                                                 entropy.reduction, entropy.ignored, entropy.smoothing);
  const at::Tensor total = entropy.reduction == at::Reduction::None ? loss.square().sum() : loss;
  total.backward();
  return {loss.detach(), x.grad()};
}

std::vector<Entropy> entropies() {
  std::vector<Entropy> all;
  for (const int reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    for (const bool has_weight : {false, true}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const int64_t ignored : {-100, 2}) all.push_back({has_weight, smoothing, ignored, reduction});
      }
    }
  }
  return all;
}

struct Calls {
  int64_t reduces = 0;
  int64_t gathers = 0;  ///< and whatever else moves elements from rank to rank
};

Calls calls_of(const Mesh& mesh) {
  Calls calls;
  for (const std::string& axis : mesh.names()) {
    const auto& counted = mesh[axis].comm().traffic().calls;
    calls.reduces += counted[static_cast<size_t>(Verb::all_reduce)];
    for (const Verb verb : {Verb::all_gather, Verb::all_to_all, Verb::reduce_scatter, Verb::broadcast}) {
      calls.gathers += counted[static_cast<size_t>(verb)];
    }
  }
  return calls;
}

void check_entropy(const Axes& axes, const Layout& logits, const Layout& target, bool cuts_weight) {
  const at::Tensor x = random_tensor({12, 10}, 1) * 4;
  const at::Tensor y = targets(12, 10);
  const at::Tensor weight = random_tensor({10}, 2) + 1.5;
  const Layout classes = cuts_weight ? Layout({{"tp", Shard{0}}}) : Layout();
  for (const Entropy& entropy : entropies()) {
    const LossAndGradient alone = cross_entropy(entropy, x, y, weight);
    on_mesh(axes, [&](const Mesh& mesh) {
      const GlobalContext context(mesh);
      const at::Tensor own = distribute(x, logits, context);
      const at::Tensor own_weight = distribute(weight, classes, context);
      const at::Tensor own_target = distribute(y, target, context);
      const Calls before = calls_of(mesh);
      const LossAndGradient cut = cross_entropy(entropy, own, own_target, own_weight);
      // Smoothing with weights gathers weights or targets by ATen's own formula, which is no part of what is checked.
      if (!entropy.has_weight || entropy.smoothing == 0) {
        EXPECT_EQ(calls_of(mesh).gathers, before.gathers);
        EXPECT_EQ(context.report(), "");
      }
      EXPECT_EQ(layout(cut.grad).to_string(), layout(own).to_string());
      EXPECT_TRUE(is_close(full(cut.loss), alone.loss, kRounding)) << "reduction " << entropy.reduction;
      EXPECT_TRUE(is_close(full(cut.grad), alone.grad, kRounding)) << "reduction " << entropy.reduction;
    });
  }
}

TEST(GlobalLosses, cross_entropy_of_cut_classes) { check_entropy({{"tp", 2}}, {{"tp", Shard{1}}}, {}, false); }
TEST(GlobalLosses, cross_entropy_of_uneven_classes_with_cut_weights) {
  check_entropy({{"tp", 3}}, {{"tp", Shard{1}}}, {}, true);
}
TEST(GlobalLosses, cross_entropy_of_a_cut_batch) {
  check_entropy({{"dp", 3}}, {{"dp", Shard{0}}}, {{"dp", Shard{0}}}, false);
}
TEST(GlobalLosses, cross_entropy_of_cut_batch_and_classes) {
  check_entropy({{"dp", 2}, {"tp", 2}}, {{"dp", Shard{0}}, {"tp", Shard{1}}}, {{"dp", Shard{0}}}, true);
}

/// Maxima, sums of exponentials and the loss; in backward the sum of the gradient.
TEST(GlobalLosses, cross_entropy_of_cut_classes_is_four_reductions) {
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor x = distribute(random_tensor({12, 10}, 1), {{"tp", Shard{1}}}, context);
    const at::Tensor y = distribute(targets(12, 10), {}, context);
    const Calls before = calls_of(mesh);
    cross_entropy({}, x, y, {});
    const Calls after = calls_of(mesh);
    EXPECT_EQ(after.gathers, before.gathers);
    EXPECT_LE(after.reduces - before.reduces, 4);
  });
}

TEST(GlobalLosses, a_class_that_is_not_there_is_refused) {
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor x = distribute(random_tensor({3, 4}, 1), {{"tp", Shard{1}}}, context);
    const at::Tensor y = distribute(at::tensor({0, 4, 1}, at::kLong), {}, context);
    EXPECT_THROW(at::nll_loss(x, y), ShapeError);
  });
}

/// A mean divides by the elements of the whole, on pieces of different sizes, of which one may be empty.
TEST(GlobalLosses, means_of_uneven_pieces) {
  const at::Tensor x = random_tensor({7, 6}, 1).sigmoid();
  const at::Tensor y = random_tensor({7, 6}, 2).sigmoid();
  using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<Loss> losses{
      [](const auto& a, const auto& b) { return at::mse_loss(a, b); },
      [](const auto& a, const auto& b) { return at::l1_loss(a, b); },
      [](const auto& a, const auto& b) { return at::smooth_l1_loss(a, b, at::Reduction::Mean, 0.1); },
      [](const auto& a, const auto& b) { return at::huber_loss(a, b, at::Reduction::Mean, 0.1); },
      [](const auto& a, const auto& b) { return at::binary_cross_entropy(a, b); },
      [](const auto& a, const auto& b) { return at::binary_cross_entropy_with_logits(a, b); },
      [](const auto& a, const auto& b) { return at::kl_div(a.log(), b); },
      [](const auto& a, const auto& b) { return at::soft_margin_loss(a, b); },
  };
  for (size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor input = x.detach().requires_grad_(true);
    const at::Tensor alone = losses[i](input, y);
    alone.backward();
    on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
      const GlobalContext context(mesh);
      for (const Shard& shard : {Shard{0, {3, 3, 1}}, Shard{0, {0, 2, 5}}, Shard{1}}) {
        const at::Tensor own = distribute(x, {{"dp", shard}}, context).requires_grad_(true);
        const at::Tensor loss = losses[i](own, distribute(y, {{"dp", shard}}, context));
        loss.backward();
        EXPECT_NEAR(full(loss.detach()).item<double>(), alone.item<double>(), kRounding) << i;
        EXPECT_TRUE(is_close(full(own.grad()), input.grad(), kRounding)) << i;
      }
      EXPECT_EQ(context.report(), "");
    });
  }
}

TEST(GlobalLosses, ctc_of_a_cut_batch) {
  const at::Tensor x = random_tensor({9, 5, 4}, 1).log_softmax(2);
  const at::Tensor y = at::tensor({1, 2, 3, 1, 2, 1, 3, 3, 1, 2, 1, 2, 3, 2, 1}, at::kLong).view({5, 3});
  const std::vector<int64_t> times{9, 8, 9, 7, 9};
  const std::vector<int64_t> lengths{1, 2, 1, 3, 2};
  const at::Tensor input = x.detach().requires_grad_(true);
  const at::Tensor alone = at::ctc_loss(input, y, times, lengths);
  alone.backward();
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor own = distribute(x, {{"dp", Shard{1}}}, context).requires_grad_(true);
    const at::Tensor loss = at::ctc_loss(own, distribute(y, {{"dp", Shard{0}}}, context), times, lengths);
    loss.backward();
    EXPECT_NEAR(full(loss.detach()).item<double>(), alone.item<double>(), kRounding);
    EXPECT_TRUE(is_close(full(own.grad()), input.grad(), kRounding));
  });
}

}  // namespace
}  // namespace caravan::testing::losses_test
