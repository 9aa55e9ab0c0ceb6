#include <cmath>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::weights_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::tiny_config;

/// The starting values on rank `rank` of a dp x tp mesh if each matrix is split as a tensor technique would do it.
std::unique_ptr<Model> cut_model(const ModelConfig& config, int rank, int dp, int tp, const Placement& placement) {
  const Mesh mesh = Mesh::create(make_record_world(rank, dp * tp), {{"dp", dp}, {"tp", tp}});
  auto model = make_model(config);
  std::map<std::string, Layout> layouts;
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->global_shape().size() == 2) layouts.emplace(parameter->name(), Layout{{"tp", placement}});
  }
  model->materialise(mesh, layouts, {.seed = 1});
  return model;
}

at::Tensor slice(const at::Tensor& whole, const Box& box) {
  at::Tensor piece = whole.detach();
  for (int64_t dim = 0; dim < piece.dim(); ++dim) {
    piece = piece.narrow(dim, box.offset[static_cast<size_t>(dim)], box.size[static_cast<size_t>(dim)]);
  }
  return piece;
}

class StartingValues : public ::testing::TestWithParam<Architecture> {};

TEST_P(StartingValues, arePiecesOfTheSameWholeInEveryLayout) {
  ModelConfig config = tiny_config(GetParam(), false);
  config.vocabulary = 24;
  config.context = 12;
  config.hidden = 30;
  config.kv_heads = GetParam() == Architecture::llama() ? 3 : 0;
  const auto whole = testing::whole_model(config);
  for (const Placement& placement : {Placement(Shard{.dim = 0}), Placement(Shard{.dim = 1}), Placement(Replicate{})}) {
    for (int rank = 0; rank < 6; ++rank) {
      const Mesh mesh = Mesh::create(make_record_world(rank, 6), {{"dp", 2}, {"tp", 3}});
      const auto cut = cut_model(config, rank, 2, 3, placement);
      const auto parameters = whole->parameters();
      const auto pieces = cut->parameters();
      for (size_t i = 0; i < pieces.size(); ++i) {
        const Box box = local_box(pieces[i]->global_shape(), pieces[i]->sharded_layout(), mesh, pieces[i]->name());
        EXPECT_TRUE(pieces[i]->sharded().equal(slice(parameters[i]->sharded(), box))) << pieces[i]->name() << rank;
      }
    }
  }
}

TEST_P(StartingValues, unevenPiecesToo) {
  const ModelConfig config = tiny_config(GetParam());
  const auto whole = testing::whole_model(config);
  const Mesh mesh = Mesh::create(make_record_world(1, 2), {{"tp", 2}});
  auto cut = make_model(config);
  const std::string name = "blocks.1.mlp.up.weight";  // [29, 18]
  cut->materialise(mesh, {{name, Layout{{"tp", Shard{.dim = 0, .sizes = {11, 18}}}}}}, {.seed = 1});
  const auto find = [&](const Module& model) {
    for (const Parameter* parameter : model.parameters()) {
      if (parameter->name() == name) return parameter->sharded().detach();
    }
    return at::Tensor();
  };
  EXPECT_TRUE(find(*cut).equal(find(*whole).narrow(0, 11, 18)));
}

TEST_P(StartingValues, haveTheSpreadOfGpt2) {
  ModelConfig config = tiny_config(GetParam(), false);
  config.width = 96;
  config.hidden = 256;
  config.vocabulary = 300;
  const auto model = testing::whole_model(config, 5);
  for (const Parameter* parameter : model->parameters()) {
    const at::Tensor x = parameter->sharded().detach();
    if (x.dim() == 1) {
      const bool is_scale = parameter->name().ends_with("norm.weight");
      EXPECT_TRUE((x == (is_scale ? 1 : 0)).all().item<bool>()) << parameter->name();
      continue;
    }
    const bool is_residual = parameter->name().ends_with("output.weight") || parameter->name().ends_with("down.weight");
    const double std = 0.02 / (is_residual ? std::sqrt(2.0 * 2) : 1);
    const double n = static_cast<double>(x.numel());
    EXPECT_NEAR(x.std().item<double>(), std, 5 * std / std::sqrt(2 * n)) << parameter->name();
    EXPECT_NEAR(x.mean().item<double>(), 0, 5 * std / std::sqrt(n)) << parameter->name();
  }
}

TEST_P(StartingValues, anotherSeedGivesOthers) {
  const auto a = testing::whole_model(tiny_config(GetParam()), 1);
  const auto b = testing::whole_model(tiny_config(GetParam()), 2);
  EXPECT_FALSE(a->parameters().front()->sharded().equal(b->parameters().front()->sharded()));
}

TEST_P(StartingValues, countsAreThoseOfTheConfig) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = tiny_config(GetParam(), tied);
    const auto model = make_model(config);
    int64_t count = 0;
    for (const Parameter* parameter : model->parameters()) count += parameter->num_elements();
    EXPECT_EQ(count, config.num_parameters());
  }
}

/// A whole training step without memory: every op of the library computes the shapes of its results.
TEST_P(StartingValues, aStepNeedsNoMemory) {
  for (const double dropout : {0.0, 0.1}) {
    ModelConfig config = tiny_config(GetParam());
    config.dropout = dropout;
    const auto model = make_model(config);
    model->materialise(testing::one_rank(), {}, {.device = at::kMeta});
    const at::Tensor ids = testing::tokens(3, 11, config.vocabulary).to(at::kMeta);
    EXPECT_EQ(model->run({ids}, {}).front().sizes(), at::IntArrayRef({3, 11, config.vocabulary}));
    const at::Tensor loss = model->run({ids, ids}, {}).front();
    EXPECT_EQ(loss.dim(), 0);
    loss.backward();
    for (const auto& [name, gradient] : testing::gradients(*model)) EXPECT_TRUE(gradient.is_meta()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, StartingValues, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelConfig, whatNoModelCanHaveIsRefusedByKey) {
  const auto refusal = [](auto change) {
    ModelConfig config = tiny_config(Architecture::llama());
    change(config);
    return error_of<UsageError>([&] { make_model(config); });
  };
  EXPECT_THAT(refusal([](auto& c) { c.heads = 4; }), HasSubstr("model.heads: 4 heads do not divide width 18"));
  EXPECT_THAT(refusal([](auto& c) { c.heads = 6; }), HasSubstr("heads of width 3 cannot be rotated in pairs"));
  EXPECT_THAT(refusal([](auto& c) { c.kv_heads = 2; }), HasSubstr("2 kv_heads do not divide 3 heads"));
  EXPECT_THAT(refusal([](auto& c) { c.layers = 0; }), HasSubstr("model.layers: 0 is not between 1"));
  EXPECT_THAT(refusal([](auto& c) { c.dropout = 1; }), HasSubstr("model.dropout: 1 is not in [0, 1)"));
  EXPECT_THAT(refusal([](auto& c) { c.vocabulary = -3; }), HasSubstr("model.vocabulary"));
  EXPECT_THAT(refusal([](auto& c) { c.own_head_width = 5; }), HasSubstr("use head_width = 6"));
  EXPECT_THAT(refusal([](auto& c) { c.rope_fraction = 0.5; }), HasSubstr("cannot be rotated in pairs"));
  EXPECT_THAT(refusal([](auto& c) { c.full_layers = LayerSet::parse("0, 2"); }), HasSubstr("layer 2 of 2"));
  EXPECT_THAT(refusal([](auto& c) { c.arch.has_one_norm = true; }), HasSubstr("not parallel"));
  EXPECT_THAT(refusal([](auto& c) { c.rope_scaling = {.kind = RopeScalingKind::dynamic, .factor = 2}; }),
              HasSubstr("rope_original_context"));
  EXPECT_THAT(refusal([](auto& c) { c.rope_scaling = {.kind = RopeScalingKind::longrope, .factor = 2}; }),
              HasSubstr("0 short and 0 long factors"));
  EXPECT_THAT(refusal([](auto& c) { c.logits_cap = -1; }), HasSubstr("model.logits_cap: -1 is not 0 or more"));
}

TEST(ModelInputs, thatDoNotFitAreRefused) {
  const ModelConfig config = tiny_config(Architecture::gpt2());
  const auto model = testing::whole_model(config);
  at::Tensor ids = testing::tokens(2, 5, config.vocabulary);
  ids[1][2] = 23;
  EXPECT_THAT(error_of<DataError>([&] { model->run({ids}, {}); }),
              HasSubstr("embedding.token: id 23 at index 7 is out of range: the table has 23 rows"));
  EXPECT_THROW(model->run({ids.to(at::kInt)}, {}), UsageError);
  EXPECT_THROW(model->run({ids.flatten()}, {}), ShapeError);
  EXPECT_THROW(model->run({ids, ids.narrow(1, 0, 4)}, {}), ShapeError);
  EXPECT_THAT(error_of<UsageError>([&] { model->run({testing::tokens(1, 14, 23)}, {}); }),
              HasSubstr("14 positions, but the model's context is 13"));
}

}  // namespace
}  // namespace caravan::weights_test
