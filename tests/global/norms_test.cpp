// Statistics over a cut batch are those of one process, and nothing is gathered for them.
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::norms_test {
namespace {

at::Tensor whole(const at::Tensor& x) { return is_global(x) ? full(x.detach()) : x.detach(); }

struct Normalized {
  at::Tensor output, grad_input, grad_weight, grad_bias, mean, var;
};

/// Two steps of training and one of evaluation, so that the running statistics count.
template <typename Norm>
Normalized normalize(Norm norm, const at::Tensor& x, const at::Tensor& upstream) {
  at::Tensor input = x.detach().requires_grad_(true);
  norm->forward(input.detach() * 2 + 1);
  at::Tensor output = norm->forward(input);
  (output * upstream).sum().backward();
  Normalized all;
  all.grad_input = whole(input.grad());
  all.grad_weight = whole(norm->weight.grad());
  all.grad_bias = whole(norm->bias.grad());
  all.mean = whole(norm->running_mean);
  all.var = whole(norm->running_var);
  norm->eval();
  all.output = whole(norm->forward(input)) + whole(output);
  return all;
}

/// 1e-12: fp64 sums of fewer than 1000 terms of the size of 1, in another order.
void expect_same(const Normalized& a, const Normalized& b) {
  EXPECT_TRUE(is_close(a.output, b.output, 1e-12));
  EXPECT_TRUE(is_close(a.grad_input, b.grad_input, 1e-12));
  EXPECT_TRUE(is_close(a.grad_weight, b.grad_weight, 1e-12));
  EXPECT_TRUE(is_close(a.grad_bias, b.grad_bias, 1e-12));
  EXPECT_TRUE(is_close(a.mean, b.mean, 1e-12));
  EXPECT_TRUE(is_close(a.var, b.var, 1e-12));
}

torch::nn::BatchNorm2d batch_norm() {
  torch::nn::BatchNorm2d norm(6);
  norm->to(at::kDouble);
  const at::NoGradGuard no_gradient;
  norm->weight.copy_(random_tensor({6}, 3) + 2);
  norm->bias.copy_(random_tensor({6}, 4));
  return norm;
}

void check_batch_norm(const Axes& axes, const Layout& layout, const Layout& channels) {
  const at::Tensor x = random_tensor({7, 6, 3, 4}, 1) + 3;
  const at::Tensor upstream = random_tensor({7, 6, 3, 4}, 2);
  const Normalized alone = normalize(batch_norm(), x, upstream);
  on_mesh(axes, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    auto norm = batch_norm();
    distribute_module(*norm, {{"weight", channels}, {"bias", channels}, {"running_*", channels}}, context);
    expect_same(alone, normalize(norm, distribute(x, layout, context), distribute(upstream, layout, context)));
    EXPECT_EQ(context.report(), "");
  });
}

TEST(GlobalNorms, batch_norm_of_a_cut_batch) { check_batch_norm({{"dp", 3}}, {{"dp", Shard{0}}}, {}); }
TEST(GlobalNorms, batch_norm_of_cut_rows_of_pixels) {
  check_batch_norm({{"dp", 2}, {"cp", 3}}, {{"dp", Shard{0}}, {"cp", Shard{2}}}, {});
}
TEST(GlobalNorms, batch_norm_of_cut_channels) {
  check_batch_norm({{"dp", 2}, {"tp", 2}}, {{"dp", Shard{0}}, {"tp", Shard{1}}}, {{"tp", Shard{0}}});
}

TEST(GlobalNorms, vector_norms_of_every_order) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = random_tensor({5, 4, 6}, 5);
  x.narrow(0, 0, 3).masked_fill_(random_tensor({3, 4, 6}, 6).gt(0.5), 0);  // pieces with zeros, and without
  on_mesh({{"a", 2}, {"b", 3}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor cut = distribute(x, {{"a", Shard{0}}, {"b", Shard{2}}}, context);
    for (const double order : {0.0, 1.0, 2.0, 3.0, 0.5, infinity, -infinity, -1.0}) {
      EXPECT_TRUE(is_close(full(at::linalg_vector_norm(cut, order)), at::linalg_vector_norm(x, order), 1e-12)) << order;
      const std::vector<int64_t> dims{0, 1};
      EXPECT_TRUE(is_close(full(at::linalg_vector_norm(cut, order, dims, true)),
                           at::linalg_vector_norm(x, order, dims, true), 1e-12))
          << order;
    }
    EXPECT_EQ(context.report(), "");
  });
}

/// A list is one all-reduce for each axis, however many tensors it has and however they lie.
TEST(GlobalNorms, norms_of_a_list) {
  std::vector<at::Tensor> all;
  for (uint64_t i = 0; i < 6; ++i) all.push_back(random_tensor({5, 6}, i));
  on_mesh({{"a", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    std::vector<at::Tensor> cut;
    for (size_t i = 0; i < all.size(); ++i) {
      const Layout layout = i == 5 ? Layout() : Layout({{"a", Shard{static_cast<int>(i % 2)}}});
      cut.push_back(distribute(all[i], layout, context));
    }
    const int64_t before = mesh["a"].comm().traffic().total_calls();
    const std::vector<at::Tensor> norms = at::_foreach_norm(cut, 2);
    EXPECT_EQ(mesh["a"].comm().traffic().total_calls() - before, 1);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(is_close(full(norms[i]), all[i].norm(), 1e-12)) << i;
    EXPECT_EQ(context.report(), "");
  });
}

}  // namespace
}  // namespace caravan::testing::norms_test
