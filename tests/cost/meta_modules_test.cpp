#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/data/ddp.h"
#include "tests/cost/both_ways.h"
#include "tests/techniques/together/user_net.h"

namespace caravan::testing::meta_modules_test {
namespace {

constexpr int64_t kRows = 8;

/// A step of a user's torch::nn::Module with convolutions and batch norm.
Taken taken_by(at::Device device) {
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const auto net = std::make_shared<UserNet>();
  net->to(at::kFloat);
  if (device.is_meta()) to_meta(*net);
  ModuleAdapter module(net, UserNet::units(net), mesh);
  Engine engine(module, mesh, ddp(module, mesh, {.static_graph = false}), {});
  Taken taken;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = at::ones({kRows, 2, 5, 5}, device);
    TakenCounter counter;
    engine.begin_step(1);
    at::Tensor loss = module.run({x}, {}).front().square().sum();
    counter.hold();
    loss.backward();
    loss.reset();
    engine.finish_step();
    counter.hold();
    taken = counter.finish();
  }
  return taken;
}

TEST(MetaModules, AUsersConvolutionsUseTheMemoryOfRealOnes) {
  const Taken real = taken_by(at::kCPU), meta = taken_by(at::kMeta);
  // oneDNN lays images and weights out anew for a convolution, in blocks of 16, or not: bounded by a copy of each.
  constexpr int64_t kImages = 16 * 16 * 5 * 5, kWeights = 16 * 16 * 3 * 3;
  expect_same(real, meta, "a net of a user", {.above = (2 * kImages + kWeights) * 4});
}

/// A user's attention, as torch chooses its kernel.
Taken attention_taken_by(at::Device device, bool is_causal, bool is_masked, double dropout) {
  constexpr int64_t kHeads = 4, kPositions = 48, kWidth = 16;
  const auto made = [&] { return at::ones({kRows, kHeads, kPositions, kWidth}, device).requires_grad_(); };
  const at::Tensor q = made(), k = made(), v = made();
  std::optional<at::Tensor> mask;
  if (is_masked) mask = at::zeros({kPositions, kPositions}, device);
  TakenCounter counter;
  at::Tensor loss = at::scaled_dot_product_attention(q, k, v, mask, dropout, is_causal).sum();
  counter.hold();
  loss.backward();
  loss.reset();
  counter.hold();
  return counter.finish();
}

TEST(MetaModules, AUsersAttentionIsTheKernelThatTorchChooses) {
  for (const auto& [is_causal, is_masked, dropout] :
       {std::tuple(false, false, 0.0), {true, false, 0.0}, {false, true, 0.0}, {false, false, 0.1}}) {
    const Taken real = attention_taken_by(at::kCPU, is_causal, is_masked, dropout);
    const Taken meta = attention_taken_by(at::kMeta, is_causal, is_masked, dropout);
    EXPECT_EQ(meta.computed.products, real.computed.products);
    EXPECT_EQ(meta.held, real.held);
    EXPECT_NEAR(static_cast<double>(meta.peak), static_cast<double>(real.peak), 0.03 * static_cast<double>(real.peak));
  }
}

/// If a dry run cannot know a value, it throws an error that names it.
TEST(MetaModules, AnOperatorThatDependsOnDataIsNamed) {
  const at::Tensor x = at::ones({4}, at::kMeta);
  const auto error_of = [](const auto& run) {
    try {
      run();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of([&] { return x.nonzero(); }).find("aten::nonzero"), std::string::npos);
  EXPECT_NE(error_of([&] { return x.item<float>(); }).find("item"), std::string::npos);
}

}  // namespace
}  // namespace caravan::testing::meta_modules_test
