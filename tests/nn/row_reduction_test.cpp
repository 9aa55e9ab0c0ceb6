#include "caravan/nn/row_reduction.h"

#include <array>
#include <barrier>
#include <functional>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/norm.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::row_reduction_test {
namespace {

using testing::distance;
using testing::normal;
using testing::Slots;

/// Two ranks that are threads of this process.
struct Pair {
  std::barrier<> barrier{2};
  std::array<at::Tensor, 2> rows;
};

class PairReduction final : public RowReduction {
 public:
  PairReduction(Pair& pair, size_t rank) : pair_(pair), rank_(rank) {}
  void max(at::Tensor& rows) override {
    combine(rows, [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); });
  }
  void sum(at::Tensor& rows) override {
    combine(rows, [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
  }
  Layout reduced(const Layout& summands) const override { return summands; }

 private:
  void combine(at::Tensor& rows, const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& f) {
    pair_.rows[rank_] = rows.clone();
    pair_.barrier.arrive_and_wait();
    rows = f(pair_.rows[0], pair_.rows[1]);
    pair_.barrier.arrive_and_wait();
  }
  Pair& pair_;
  size_t rank_;
};

using Body = std::function<void(size_t rank, const std::shared_ptr<RowReduction>& reduction)>;

void on_two_ranks(const Body& body) {
  Pair pair;
  std::thread other([&] { body(1, std::make_shared<PairReduction>(pair, 1)); });
  body(0, std::make_shared<PairReduction>(pair, 0));
  other.join();
}

/// 7 features here, 3 there.
at::Tensor piece(const at::Tensor& x, size_t rank) { return rank == 0 ? x.narrow(-1, 0, 7) : x.narrow(-1, 7, 3); }

class SplitNorms : public ::testing::TestWithParam<bool> {};

TEST_P(SplitNorms, areThoseOfTheWhole) {
  const bool has_bias = GetParam();
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-13), {at::kFloat, 2e-6}, {at::kBFloat16, 2e-2}}) {
    Slots slots;
    const at::Tensor x = (normal({5, 3, 10}, 1) + 4).to(type).requires_grad_(true);
    const at::Tensor outer = normal({5, 3, 10}, 2).to(type);
    Parameter& weight = slots.of(normal({10}, 3).to(type).requires_grad_(true));
    Parameter& bias = slots.of(normal({10}, 4).to(type).requires_grad_(true));
    const at::Tensor want = has_bias ? layer_norm(x, weight, bias, 1e-5) : rms_norm(x, weight, 1e-5);
    want.backward(outer);
    on_two_ranks([&, type = type, tolerance = tolerance](size_t rank, const auto& reduction) {
      const auto leaf_of = [&](const at::Tensor& t) { return piece(t.detach(), rank).clone().requires_grad_(true); };
      Parameter w("weight", {.shape = {10}});
      Parameter b("bias", {.shape = {10}});
      w.set_sharded(leaf_of(weight.unsharded()), {});
      b.set_sharded(leaf_of(bias.unsharded()), {});
      const at::Tensor local = leaf_of(x);
      const at::Tensor y = split_norm(local, w, has_bias ? &b : nullptr, 1e-5, reduction);
      y.backward(piece(outer, rank));
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_LT(distance(y, piece(want, rank)), tolerance);
      EXPECT_LT(distance(local.grad(), piece(x.grad(), rank)), 4 * tolerance);
      EXPECT_LT(distance(w.unsharded().grad(), piece(weight.unsharded().grad(), rank)), 4 * tolerance);
      if (!has_bias) return;
      EXPECT_LT(distance(b.unsharded().grad(), piece(bias.unsharded().grad(), rank)), tolerance);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, SplitNorms, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "layer_norm" : "rms_norm"); });

TEST(SplitVocabulary, givesTheLossOfTheWhole) {
  for (const int64_t cut : {5, 0, 11}) {  // uneven pieces; all rows on one rank
    for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-13), {at::kFloat, 4e-6}, {at::kBFloat16, 3e-2}}) {
      Slots slots;
      const at::Tensor hidden = normal({2, 300, 8}, 1).to(type).requires_grad_(true);
      at::Tensor labels = testing::tokens(2, 300, 11, 3);
      labels[0][1] = kIgnoredLabel;
      const at::Tensor weight = normal({11, 8}, 2).to(type).requires_grad_(true);
      CrossEntropy whole(slots.of(weight));
      const at::Tensor want = whole.run({hidden, labels}, {.loss_scale = 0.3}).front();
      want.backward();
      std::array<at::Tensor, 2> hidden_gradients;
      on_two_ranks([&, tolerance = tolerance](size_t rank, const auto& reduction) {
        const auto rows = [&](const at::Tensor& t) {
          return rank == 0 ? t.narrow(0, 0, cut) : t.narrow(0, cut, 11 - cut);
        };
        Parameter w("weight", {.shape = {11, 8}});
        w.set_sharded(rows(weight.detach()).clone().requires_grad_(true), {});
        CrossEntropy split(w);
        split.set_row_reduction(reduction, rank == 0 ? 0 : cut);
        const at::Tensor local = hidden.detach().clone().requires_grad_(true);
        const at::Tensor loss = split.run({local, labels}, {.loss_scale = 0.3}).front();
        EXPECT_LT(distance(loss, want), tolerance);
        loss.backward();
        hidden_gradients[rank] = local.grad();
        const at::Tensor difference = w.unsharded().grad().to(at::kDouble) - rows(weight.grad()).to(at::kDouble);
        EXPECT_LE(difference.norm().item<double>(), tolerance * weight.grad().norm().item<double>());
      });
      EXPECT_LT(distance(hidden_gradients[0] + hidden_gradients[1], hidden.grad()), tolerance);
    }
  }
}

TEST(SplitVocabulary, knowsTheLabelsOfTheWhole) {
  Slots slots;
  Parameter weight("weight", {.shape = {11, 8}});
  weight.set_sharded(normal({4, 8}, 2), {});
  CrossEntropy split(weight);
  Pair pair;
  split.set_row_reduction(std::make_shared<PairReduction>(pair, 0), 0);
  const at::Tensor labels = at::tensor({11, 1}, at::kLong);
  EXPECT_THROW(split.run({normal({2, 8}, 1), labels}, {}), DataError);
}

}  // namespace
}  // namespace caravan::row_reduction_test
