#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::convolution_test {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A block of a residual net, its shortcut by a grouped and its end by a transposed convolution.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    using torch::nn::Conv2d;
    using torch::nn::Conv2dOptions;
    up = register_module("up", Conv2d(Conv2dOptions(4, 12, 3).padding(1)));
    down = register_module("down", Conv2d(Conv2dOptions(12, 6, 3).padding(1)));
    grouped = register_module("grouped", Conv2d(Conv2dOptions(4, 6, 1).groups(2)));
    wide = register_module("wide", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(6, 3, 2).stride(2)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = down(torch::relu(up(x)));
    return wide(at::max_pool2d(torch::relu(inner + grouped(x)), {2, 2}));
  }
  torch::nn::Conv2d up{nullptr}, down{nullptr}, grouped{nullptr};
  torch::nn::ConvTranspose2d wide{nullptr};
};

at::Tensor whole(const at::Tensor& x) { return (is_global(x) ? full(x.detach()) : x.detach()).clone(); }

/// The output, and the gradients of input and parameters.
Tensors results(const std::function<void(torch::nn::Module&)>& prepare,
                const std::function<at::Tensor(const at::Tensor&)>& place) {
  const auto net = [] {
    static std::mutex one_generator;  // of all rank threads
    const std::lock_guard lock(one_generator);
    at::manual_seed(7);
    return std::make_shared<BlockImpl>();
  }();
  net->to(at::kDouble);
  prepare(*net);
  const at::Tensor x = place(random_tensor({6, 4, 6, 6}, 1).requires_grad_());
  const at::Tensor y = net->forward(x);
  (y * y).sum().backward();
  Tensors all{whole(y), whole(x.grad())};
  for (const at::Tensor& each : net->parameters()) all.push_back(whole(each.grad()));
  return all;
}

void check(const Axes& axes, const std::vector<NamedLayout>& layouts, const Layout& batch) {
  const Tensors alone = results([](torch::nn::Module&) {}, [](const at::Tensor& x) { return x; });
  on_mesh(axes, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const Tensors spread = results([&](torch::nn::Module& net) { distribute_module(net, layouts, context); },
                                   [&](const at::Tensor& x) { return distribute(x, batch, context); });
    // Sums of at most 864 terms in another order.
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(is_close(alone[i], spread[i], 1e-12)) << "tensor " << i;
    EXPECT_EQ(context.report(), "");
  });
}

/// Output channels, then input channels.
const std::vector<NamedLayout> kChannels{{"up.*", {{"tp", Shard{0}}}}, {"down.weight", {{"tp", Shard{1}}}}};

TEST(GlobalConvolution, dp) {
  check({{"dp", 2}}, {}, {{"dp", Shard{0}}});
  check({{"dp", 4}}, {}, {{"dp", Shard{0}}});
}
TEST(GlobalConvolution, tp) {
  check({{"tp", 2}}, kChannels, {});
  check({{"tp", 3}}, kChannels, {});
}
TEST(GlobalConvolution, dp_and_tp) { check({{"dp", 2}, {"tp", 2}}, kChannels, {{"dp", Shard{0}}}); }
TEST(GlobalConvolution, parameters_in_shards) { check({{"dp", 2}}, {{"*", {{"dp", Shard{0}}}}}, {{"dp", Shard{0}}}); }
TEST(GlobalConvolution, a_rank_without_channels) {
  const Layout cut{{"tp", Shard{0, {5, 0, 7}}}};
  check({{"tp", 3}}, {{"up.*", cut}, {"down.weight", {{"tp", Shard{1, {5, 0, 7}}}}}}, {});
}
TEST(GlobalConvolution, groups) {
  check({{"tp", 2}}, {{"grouped.*", {{"tp", Shard{0}}}}, {"wide.weight", {{"tp", Shard{0}}}}}, {});
}

}  // namespace
}  // namespace caravan::testing::convolution_test
