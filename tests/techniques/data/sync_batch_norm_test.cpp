#include "caravan/techniques/data/sync_batch_norm.h"

#include <functional>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "caravan/base/error.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::sync_batch_norm_test {
namespace {

struct Outcome {
  at::Tensor y, dx, dweight, dbias, running_mean, running_var;
};

torch::nn::BatchNorm2d norm_of_three() {
  torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(3).momentum(0.3));
  norm->to(at::kDouble);
  const at::NoGradGuard no_grad;
  norm->weight.copy_(at::tensor({0.5, -2.0, 1.5}, at::kDouble));
  norm->bias.copy_(at::tensor({0.1, 0.2, 0.3}, at::kDouble));
  return norm;
}

/// Far from 0, so that a difference of squares would lose digits.
at::Tensor rows_of(int64_t rows) {
  return (at::arange(rows * 3 * 4, at::kDouble).mul(0.7).sin() * at::arange(1, rows * 12 + 1, at::kDouble) + 1000)
      .view({rows, 3, 2, 2});
}

/// Runs rows [first, last): two steps in training and one in evaluation, with the gradient of a weighted sum of all
/// outputs.
Outcome run(const at::Tensor& x, const at::Tensor& weights, const std::function<at::Tensor(const at::Tensor&)>& norm,
            torch::nn::BatchNorm2d& of) {
  Outcome outcome;
  norm(x * 2 - 3);
  const at::Tensor input = x.clone().requires_grad_();
  outcome.y = norm(input);
  (outcome.y * weights).sum().backward();
  of->eval();
  outcome.y = at::cat({outcome.y.detach(), norm(x).detach()}, 1);
  outcome.dx = input.grad();
  outcome.dweight = of->weight.grad();
  outcome.dbias = of->bias.grad();
  outcome.running_mean = of->running_mean;
  outcome.running_var = of->running_var;
  return outcome;
}

TEST(SyncBatchNorm, MatchesOneProcessOnAllRows) {
  constexpr int64_t kRows = 7;
  const at::Tensor x = rows_of(kRows);
  const at::Tensor weights = at::arange(x.numel(), at::kDouble).cos().view(x.sizes());
  torch::nn::BatchNorm2d whole = norm_of_three();
  const Outcome want = run(
      x, weights, [&](const at::Tensor& input) { return whole(input); }, whole);
  // Rows of each rank, one of them has none.
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{7}, {3, 4}, {1, 6}, {2, 5, 0}, {1, 2, 3, 1}}) {
    std::vector<Outcome> ranks(rows.size());
    on_mesh({{"dp", static_cast<int>(rows.size())}}, [&](const Mesh& mesh) {
      const auto rank = static_cast<size_t>(mesh.rank());
      const int64_t first = std::accumulate(rows.begin(), rows.begin() + mesh.rank(), int64_t{0});
      torch::nn::BatchNorm2d norm = norm_of_three();
      const auto call = [&](const at::Tensor& input) { return sync_batch_norm(input, norm, mesh["dp"]); };
      ranks[rank] = run(x.narrow(0, first, rows[rank]), weights.narrow(0, first, rows[rank]), call, norm);
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
    });
    std::vector<at::Tensor> ys, dxs;
    at::Tensor dweight = at::zeros({3}, at::kDouble), dbias = at::zeros({3}, at::kDouble);
    for (const Outcome& rank : ranks) {
      ys.push_back(rank.y);
      dxs.push_back(rank.dx);
      dweight += rank.dweight;
      dbias += rank.dbias;
      EXPECT_TRUE(at::allclose(rank.running_mean, want.running_mean, 1e-12, 0));
      EXPECT_TRUE(at::allclose(rank.running_var, want.running_var, 1e-11, 0));
    }
    // fp64; sums in another order, of values around 1000.
    EXPECT_TRUE(at::allclose(at::cat(ys), want.y, 1e-11, 1e-11));
    EXPECT_TRUE(at::allclose(at::cat(dxs), want.dx, 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(dweight, want.dweight, 1e-11, 1e-11));
    EXPECT_TRUE(at::allclose(dbias, want.dbias, 1e-11, 1e-11));
  }
}

/// Without a momentum torch's running statistics are the means over all batches.
TEST(SyncBatchNorm, AveragesOverAllBatchesWithoutAMomentum) {
  const at::Tensor x = rows_of(6);
  const auto make = [] {
    torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt));
    norm->to(at::kDouble);
    return norm;
  };
  torch::nn::BatchNorm2d whole = make();
  for (int batch = 1; batch <= 3; ++batch) whole(x * batch);
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    torch::nn::BatchNorm2d norm = make();
    for (int batch = 1; batch <= 3; ++batch) {
      sync_batch_norm(x.narrow(0, 3 * mesh.rank(), 3) * batch, norm, mesh["dp"]);
    }
    EXPECT_TRUE(at::allclose(norm->running_mean, whole->running_mean, 1e-12, 0));
    EXPECT_TRUE(at::allclose(norm->running_var, whole->running_var, 1e-11, 0));
  });
}

/// As torch in half precision, with more values a channel than fp16 can count (65,504) or sum and bf16 can distinguish.
TEST(SyncBatchNorm, CountsAndSumsHalfPrecisionExactly) {
  constexpr int64_t kSide = 260;  // 135,200 values a channel, 67,600 on a rank
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = random_tensor({2, 3, kSide, kSide}, 5).add(2).to(type);
    const at::Tensor weights = random_tensor(x.sizes(), 6).to(type);
    const auto step = [&](const at::Tensor& input, const at::Tensor& weight, auto&& norm) {
      const at::Tensor leaf = input.clone().requires_grad_();
      const at::Tensor y = norm(leaf);
      EXPECT_EQ(y.scalar_type(), type);
      y.backward(weight);
      return std::pair(y.detach().to(at::kFloat), leaf.grad().to(at::kFloat));
    };
    torch::nn::BatchNorm2d whole(3);
    const auto want = step(x, weights, [&](const at::Tensor& input) { return whole(input); });
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      torch::nn::BatchNorm2d norm(3);
      const auto got = step(x.narrow(0, mesh.rank(), 1), weights.narrow(0, mesh.rank(), 1),
                            [&](const at::Tensor& input) { return sync_batch_norm(input, norm, mesh["dp"]); });
      const double rounding = type == at::kHalf ? 1e-3 : 8e-3;  // of y and the gradient, to 11 or 8 bits
      EXPECT_TRUE(at::allclose(got.first, want.first.narrow(0, mesh.rank(), 1), rounding, rounding));
      EXPECT_TRUE(at::allclose(got.second, want.second.narrow(0, mesh.rank(), 1), rounding, rounding));
      // Statistics are fp32 in both: sums in another order.
      EXPECT_TRUE(at::allclose(norm->running_mean, whole->running_mean, 1e-5, 0));
      EXPECT_TRUE(at::allclose(norm->running_var, whole->running_var, 1e-5, 0));
    });
  }
}

TEST(SyncBatchNorm, RefusesOtherChannelsAndASingleValue) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    torch::nn::BatchNorm2d norm = norm_of_three();
    EXPECT_THROW(sync_batch_norm(at::ones({2, 4, 1, 1}, at::kDouble), norm, mesh["dp"]), ShapeError);
    const int64_t rows = mesh.rank() == 0 ? 1 : 0;
    EXPECT_THROW(sync_batch_norm(at::ones({rows, 3, 1, 1}, at::kDouble), norm, mesh["dp"]), ShapeError);
  });
}

}  // namespace
}  // namespace caravan::testing::sync_batch_norm_test
