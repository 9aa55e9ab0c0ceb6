#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/trace/path_log.h"
#include "caravan/nn/product/product.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"
#include "tests/nn/with_products.h"

namespace caravan::joint_linear_test {
namespace {

using testing::compare;
using testing::distance;
using testing::normal;
using testing::Op;
using testing::Slots;
using testing::WithProducts;

/// x; weight and bias, weight, weight and bias of three layers.
std::vector<at::Tensor> operands(int64_t rows, int64_t in, const std::vector<int64_t>& outs) {
  return {normal({rows, 2, in}, 1), normal({outs[0], in}, 2), normal({outs[0]}, 3),
          normal({outs[1], in}, 4), normal({outs[2], in}, 5), normal({outs[2]}, 6)};
}

std::vector<at::Tensor> outputs(const std::vector<at::Tensor>& x, Slots& slots) {
  const std::vector<WeightAndBias> layers{
      {&slots.of(x[1]), &slots.of(x[2])}, {&slots.of(x[3]), nullptr}, {&slots.of(x[4]), &slots.of(x[5])}};
  return linear(x[0], layers);
}

/// In every dtype, with tiles and with a library; many and few rows; depths of panels that are in one part and in more.
TEST(JointLinear, isWhatEachLayerIsAlone) {
  const Op reference = [](const std::vector<at::Tensor>& x) {
    return at::cat({at::linear(x[0], x[1], x[2]), at::linear(x[0], x[3]), at::linear(x[0], x[4], x[5])}, -1);
  };
  for (const auto& [rows, in, outs] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{{10, 6, {4, 5, 70}},
                                                                       {40, 17, {9, 130, 3}},
                                                                       {3, 8, {4, 4, 4}},
                                                                       {9, 6, {8, 8200, 10}},
                                                                       {17, 70, {8, 4200, 10}}}) {
    for (const ProductLibrary library : available_product_libraries()) {
      for (const char* bf16 : {"native", "fp32"}) {
        const WithProducts with(fmt::format("{} bf16={}", name(library), bf16));
        SCOPED_TRACE(fmt::format("{} x {}, {}", rows, in, products_in_use()));
        Slots slots;
        const Op ours = [&](const std::vector<at::Tensor>& x) { return at::cat(outputs(x, slots), -1); };
        // Sums of as many terms; those of dx are rounded once more for each layer.
        compare(ours, reference, operands(rows, in, outs), 2 * std::sqrt(static_cast<double>(outs[1])));
      }
    }
  }
}

TEST(JointLinear, leavesOutWhatHasNoGradient) {
  std::vector<at::Tensor> x = operands(20, 6, {4, 5, 7});
  for (const size_t trained : {0, 2, 3, 4}) x[trained].requires_grad_(true);  // the first weight and last bias are not
  Slots slots;
  outputs(x, slots)[1].sum().backward();
  EXPECT_LT(distance(x[0].grad(), x[3].detach().sum(0).expand({20, 2, 6})), 1e-6);
  EXPECT_LT(distance(x[3].grad(), x[0].detach().sum({0, 1}).expand({5, 6})), 1e-6);
  for (const size_t other : {1, 2, 4, 5}) EXPECT_FALSE(x[other].grad().defined()) << other;

  const std::vector<at::Tensor> all = outputs(x, slots);
  (all[0].sum() + all[2].sum()).backward();
  const at::Tensor both = x[1].sum(0) + x[4].detach().sum(0) + x[3].detach().sum(0);
  EXPECT_LT(distance(x[0].grad(), both.expand({20, 2, 6})), 1e-6);
  EXPECT_TRUE(x[2].grad().equal(at::full({4}, 40.0)));
  EXPECT_LT(distance(x[4].grad(), x[0].detach().sum({0, 1}).expand({7, 6})), 1e-6);
  EXPECT_FALSE(x[1].grad().defined() || x[5].grad().defined());

  x[0] = x[0].detach();
  outputs(x, slots)[2].sum().backward();
  EXPECT_LT(distance(x[4].grad(), 2 * x[0].sum({0, 1}).expand({7, 6})), 1e-6);
}

/// A proof sees the products that a run executes, and a fault in each of them.
TEST(JointLinear, itsSumsArePaths) {
  const std::string library(name(available_product_libraries().front()));
  const WithProducts with(library);
  const std::string alone = fmt::format("product dx by {}", library), sum = alone + " into a sum";
  const auto gradient = [&](PathLog& log) {
    const PathScope scope(&log);
    std::vector<at::Tensor> x = operands(20, 6, {4, 5, 7});
    x[0].requires_grad_(true);
    Slots slots;
    at::cat(outputs(x, slots), -1).sum().backward();
    return x[0].grad();
  };
  PathLog log, faulty({{sum, 1.5}});
  const at::Tensor want = gradient(log), got = gradient(faulty);
  EXPECT_EQ(log.counts().at(alone), 1);
  EXPECT_EQ(log.counts().at(sum), 2);
  const std::vector<at::Tensor> x = operands(20, 6, {4, 5, 7});
  EXPECT_LT(distance(want, (x[1].sum(0) + x[3].sum(0) + x[4].sum(0)).expand({20, 2, 6})), 1e-6);
  EXPECT_LT(distance(got, (x[1].sum(0) + 1.5 * (x[3].sum(0) + x[4].sum(0))).expand({20, 2, 6})), 1e-6);
}

}  // namespace
}  // namespace caravan::joint_linear_test
