#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/mlp.h"
#include "caravan/nn/ops.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::typed_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

Layout on(const char* axis, const Placement& placement) { return Layout{{axis, placement}}; }

Mesh mesh_of(const char* axis) { return Mesh::create(make_record_world(0, 2), {{axis, 2}}); }

/// Shards every parameter on `mesh` as `layouts` says, on meta. Its layers read the shards.
void place(Module& module, const Mesh& mesh, const std::map<std::string, Layout>& layouts = {}) {
  module.materialise(mesh, layouts, {.device = at::kMeta});
}

void read_as(Module& module, const Layout& layout) {
  for (Parameter* parameter : module.parameters()) parameter->set_unsharded(parameter->unsharded(), layout);
}

class TypedModel : public ::testing::TestWithParam<Architecture> {
 protected:
  static ModelConfig config() {
    ModelConfig config = testing::tiny_config(GetParam());
    config.dropout = 0.1;
    return config;
  }
  Model model_{config()};
  at::Tensor ids_ = testing::tokens(2, 11, 23).to(at::kMeta);
  at::Tensor labels_ = testing::tokens(2, 11, 23).to(at::kMeta);
  LayoutTable layouts_;
  ForwardContext context_{.layouts = &layouts_};
};

/// Data parallelism from end to end: every operation is typed.
TEST_P(TypedModel, onAShardOfTheBatchMakesAPartialLoss) {
  place(model_, mesh_of("dp"));
  read_as(model_, on("dp", Replicate{}));
  for (const at::Tensor& input : {ids_, labels_}) layouts_.set(input, on("dp", Shard{0}));
  EXPECT_EQ(layouts_.of(model_.run({ids_}, context_).front(), ""), on("dp", Shard{0}));
  const at::Tensor loss = model_.run({ids_, labels_}, context_).front();
  EXPECT_EQ(layouts_.of(loss, ""), on("dp", Partial{}));
  loss.backward();
  for (const auto& [name, gradient] : testing::gradients(model_)) EXPECT_TRUE(gradient.is_meta()) << name;
}

TEST_P(TypedModel, onInvariantWeightsMakesAnInvariantLoss) {
  place(model_, mesh_of("tp"));
  for (const at::Tensor& input : {ids_, labels_}) layouts_.set(input, on("tp", Invariant{}));
  EXPECT_EQ(layouts_.of(model_.run({ids_, labels_}, context_).front(), ""), on("tp", Invariant{}));
}

TEST_P(TypedModel, refusesInvariantWeightsOnAShard) {
  place(model_, mesh_of("dp"));
  for (const at::Tensor& input : {ids_, labels_}) layouts_.set(input, on("dp", Shard{0}));
  EXPECT_THAT(error_of<LayoutError>([&] { model_.run({ids_, labels_}, context_); }), HasSubstr("embedding.token"));
}

TEST_P(TypedModel, needsTheKeysOfTheWholeSequence) {
  place(model_, mesh_of("cp"));
  read_as(model_, on("cp", Replicate{}));
  for (const at::Tensor& input : {ids_, labels_}) layouts_.set(input, on("cp", Shard{1}));
  EXPECT_THAT(error_of<LayoutError>([&] {
                model_.run({ids_, labels_}, context_);
              }),
              HasSubstr("blocks.0.attention.core"));
}

INSTANTIATE_TEST_SUITE_P(, TypedModel, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

/// Columns, then rows: the output is partial, and so must the bias be.
TEST(Typed, aSplitMlpMakesAPartialOutput) {
  Mlp mlp({.width = 6, .heads = 1, .vocabulary = 4, .hidden = 8});
  const Mesh mesh = mesh_of("tp");
  place(mlp, mesh,
        {{"up.weight", on("tp", Shard{0})}, {"up.bias", on("tp", Shard{0})}, {"down.weight", on("tp", Shard{1})}});
  LayoutTable layouts;
  const ForwardContext context{.layouts = &layouts};
  const at::Tensor x = at::empty({2, 3, 6}, at::kMeta);
  layouts.set(x, on("tp", Replicate{}));
  EXPECT_THAT(error_of<LayoutError>([&] { mlp(x, context); }), AllOf(HasSubstr("down"), HasSubstr("I -> P")));
  for (Parameter* parameter : mlp.parameters()) {
    if (parameter->name() != "down.bias") continue;
    parameter->set_derivation([](const at::Tensor& leaf) { return leaf.clone(); }, on("tp", Partial{}));
  }
  const at::Tensor y = mlp(x, context);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(layouts.of(y, ""), on("tp", Partial{}));
}

TEST(Typed, headsAreShardsOfFeatures) {
  LayoutTable layouts;
  const ForwardContext context{.layouts = &layouts};
  const at::Tensor x = at::empty({2, 3, 12}, at::kMeta);
  for (const Placement& placement :
       {Placement(Shard{2}), Placement(Shard{0}), Placement(Partial{}), Placement(Invariant{})}) {
    layouts.set(x, on("tp", placement));
    const at::Tensor heads = split_heads(x, 4, context, "");
    EXPECT_EQ(layouts.of(heads, ""), on("tp", placement));
    EXPECT_EQ(layouts.of(merge_heads(heads, context, ""), ""), on("tp", placement));
  }
  layouts.set(x, on("tp", Shard{.dim = 2, .sizes = {12, 8}}));
  const at::Tensor heads = split_heads(x, 4, context, "");
  EXPECT_EQ(layouts.of(heads, ""), on("tp", Shard{.dim = 2, .sizes = {3, 2}}));
  EXPECT_EQ(layouts.of(merge_heads(heads, context, ""), ""), on("tp", Shard{.dim = 2, .sizes = {12, 8}}));
  layouts.set(heads, on("tp", Shard{3}));
  EXPECT_THROW(merge_heads(heads, context, ""), LayoutError);
}

TEST(Typed, aSplitVocabularyMakesPartialRowsAndNoLoss) {
  const Mesh mesh = mesh_of("tp");
  LayoutTable layouts;
  const ForwardContext context{.layouts = &layouts};
  const at::Tensor ids = at::empty({2, 3}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
  layouts.set(ids, on("tp", Replicate{}));
  Embedding embedding(8, 6, kInitStd);
  place(embedding, mesh, {{"weight", on("tp", Shard{0})}});
  const at::Tensor x = embedding(ids, context);
  EXPECT_EQ(layouts.of(x, ""), on("tp", Partial{}));
  CrossEntropy loss(embedding.weight());
  layouts.set(x, on("tp", Replicate{}));
  EXPECT_THROW(loss.run({x, ids}, context), LayoutError);
}

}  // namespace
}  // namespace caravan::typed_test
