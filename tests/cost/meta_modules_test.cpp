#include <memory>
#include <string>

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
