#include "caravan/module/plan/layout_table.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/module/parameter.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::layout_table_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const OpType kLinear{"bsk,nk->bsn", "", {{0, 1}}};
const OpType kAddBias{"bsn,n->bsn", "", {{0}, {1}}};
const OpType kScale{"bsf,f->bsf", "", {{0, 1}}};

Layout tp(const Placement& placement) { return {{"tp", placement}}; }

at::Tensor meta(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
}

std::unique_ptr<Parameter> parameter(const std::string& name, std::vector<int64_t> shape, const Layout& layout) {
  auto made = std::make_unique<Parameter>(name, ParameterSpec{.shape = shape});
  made->set_sharded(meta(shape), layout);
  return made;
}

TEST(LayoutTable, InfersTheLayoutOfEachResult) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const auto weight = parameter("up.weight", {16, 8}, tp(Shard{0}));
  const auto bias = parameter("up.bias", {16}, tp(Shard{0}));
  table.set(x, tp(Replicate{}));
  const at::Tensor y = meta({2, 4, 8});
  table.infer(kLinear, y, {x, *weight}, "up");
  EXPECT_EQ(table.of(y, "test"), tp(Shard{2}));
  table.infer(kAddBias, y, {y, *bias}, "up");
  EXPECT_EQ(table.of(y, "test"), tp(Shard{2})) << "the result may be an operand";
}

TEST(LayoutTable, TakesTheLayoutOfADerivedParameterFromItsCompute) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const auto bias = parameter("down.bias", {8}, tp(Invariant{}));
  bias->set_derivation([](const at::Tensor& leaf) { return leaf; }, tp(Partial{}));
  table.set(x, tp(Partial{}));
  table.infer(kAddBias, x, {x, *bias}, "down");
  EXPECT_EQ(table.of(x, "test"), tp(Partial{}));
}

TEST(LayoutTable, CountsIntegersAsConstants) {
  LayoutTable table;
  const at::Tensor ids = meta({2, 4}, at::kLong);
  const at::Tensor mask = meta({2, 4}, at::kBool);
  const at::Tensor x = meta({2, 4, 8});
  table.set(ids, tp(Invariant{}));
  table.set(mask, tp(Invariant{}));
  table.set(x, tp(Replicate{}));
  const at::Tensor y = meta({2, 4, 8});
  table.infer({"bsf,bs,bs->bsf"}, y, {x, ids, mask}, "mask");
  EXPECT_EQ(table.of(y, "test"), tp(Replicate{}));
}

TEST(LayoutTable, IsKeyedByTheTensorObject) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  table.set(x, tp(Invariant{}));
  const at::Tensor handle = x;
  const at::Tensor view = x.view({2, 4, 8});
  EXPECT_TRUE(table.has(handle));
  EXPECT_FALSE(table.has(view));
  table.set(view, tp(Replicate{}));
  EXPECT_EQ(table.of(x, "test"), tp(Invariant{}));
  EXPECT_EQ(table.of(view, "test"), tp(Replicate{}));
}

TEST(LayoutTable, NamesTheOriginOfATensor) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const at::Tensor y = meta({2, 4, 8});
  EXPECT_EQ(table.origin(x), "a tensor [2, 4, 8]");
  table.set(x, tp(Invariant{}), "input 0 of the model");
  table.infer({"bsf->bsf"}, y, {x}, "blocks.0.mlp");
  EXPECT_EQ(table.origin(x), "input 0 of the model");
  EXPECT_EQ(table.origin(y), "the output of blocks.0.mlp");
  table.set(y, tp(Replicate{}));
  EXPECT_EQ(table.origin(y), "the output of blocks.0.mlp") << "unless another is given";
}

TEST(LayoutTable, RefusesATensorWithoutAType) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const auto weight = parameter("norm.weight", {8}, tp(Invariant{}));
  EXPECT_THAT(message_of<LayoutError>([&] {
                table.infer(kScale, x, {x, *weight}, "blocks.0.norm");
              }),
              AllOf(HasSubstr("blocks.0.norm: takes a tensor [2, 4, 8]"), HasSubstr("without a type")));
}

TEST(LayoutTable, RefusesWithTheNamesOfBothSidesAndWhatThePlanShouldSay) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const at::Tensor stream = meta({2, 4, 8});
  const auto weight = parameter("mlp.up.weight", {8, 8}, tp(Shard{0}));
  table.set(x, tp(Invariant{}));
  table.infer({"bsf->bsf"}, stream, {x}, "embedding");
  EXPECT_THAT(message_of<LayoutError>([&] {
                table.infer(kLinear, meta({2, 4, 8}), {stream, *weight}, "mlp.up");
              }),
              AllOf(HasSubstr("mlp.up, op bsk,nk->bsn"), HasSubstr("the output of embedding (I) meets"),
                    HasSubstr("parameter mlp.up.weight (S(0))"), HasSubstr("the output of embedding is tp=I"),
                    HasSubstr("redistribute the output of embedding I -> R first"), HasSubstr("`inputs`")));
}

TEST(LayoutTable, NamesTheLevelOfAParameterToChange) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 8});
  const auto weight = parameter("norm.weight", {8}, tp(Invariant{}));
  const auto refusal = [&](const OpType& op) {
    return message_of<LayoutError>([&] { table.infer(op, meta({2, 4, 8}), {x, *weight}, "norm"); });
  };
  table.set(x, tp(Shard{1}));
  EXPECT_THAT(refusal(kScale), AllOf(HasSubstr("redistribute parameter norm.weight I -> R"), HasSubstr("unsharded R")));
  table.set(x, tp(Partial{}));
  EXPECT_THAT(refusal(kAddBias), AllOf(HasSubstr("redistribute parameter norm.weight I -> P"), HasSubstr("compute P")));
}

TEST(LayoutTable, NeedsALabelForEachDim) {
  LayoutTable table;
  const at::Tensor x = meta({2, 4, 2, 4});
  table.set(x, tp(Shard{2}));
  EXPECT_THAT(message_of<InternalError>([&] { table.infer({"bsf->bsf"}, x, {x}, "norm"); }),
              HasSubstr("a tensor of 4 dims has the labels 'bsf'"));
}

}  // namespace
}  // namespace caravan::testing::layout_table_test
