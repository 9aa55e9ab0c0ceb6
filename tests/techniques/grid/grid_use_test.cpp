/// Plans over grids: generation, evaluation, and what they refuse.

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/prove/prove.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/grid/tensor_25d.h"
#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/grid/tensor_3d.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::grid_use_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Plan plan_of(const ModelConfig& config, const Mesh& mesh) {
  if (mesh.has("depth")) return tensor_25d(config, mesh["depth"], mesh["row"], mesh["col"]);
  if (mesh.has("row")) return tensor_2d(config, mesh["row"], mesh["col"]);
  return tensor_3d(config, mesh["a"], mesh["b"], mesh["c"]);
}

std::vector<Axes> grids() {
  return {{{"row", 2}, {"col", 2}}, {{"depth", 2}, {"row", 2}, {"col", 2}}, {{"a", 2}, {"b", 2}, {"c", 2}}};
}

ModelConfig small_model(Architecture kind, bool is_tied) {
  ModelConfig model = shrunken({.arch = kind, .tie_embeddings = is_tied});
  model.dropout = is_tied ? 0.1 : 0;  // other kernels
  if (kind == Architecture::llama()) model.kv_heads = 2;
  return model;
}

void materialise(Model& model, const Mesh& mesh, const AppliedPlan& plan) {
  std::map<std::string, Layout> rest;
  for (const auto& [name, layouts] : plan.layouts()) rest[name] = layouts.sharded;
  model.materialise(mesh, rest, {.seed = 3, .allocate = [](const Parameter&, const std::vector<int64_t>& shape) {
                                   return at::empty(shape, at::kDouble);
                                 }});
  for (Parameter* parameter : model.parameters()) {
    const auto known = plan.layouts().find(parameter->name());
    if (known != plan.layouts().end()) parameter->set_unsharded(parameter->sharded(), known->second.unsharded);
  }
}

struct Found {
  at::Tensor logits, next, loss;
};

constexpr int64_t kRows = 4, kLength = 5;

Found found_by(Model& model) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::arange(kRows * kLength).mul(7).remainder(23).view({kRows, kLength});
  const at::Tensor labels = at::arange(kRows * kLength).mul(5).remainder(23).view({kRows, kLength});
  return {.logits = model.run({ids}, {.phase = Phase::generate})[0],
          .next = model.next_logits(ids, {.phase = Phase::generate}),
          .loss = model.run({ids, labels}, {.phase = Phase::evaluate, .loss_scale = 0.5})[0]};
}

/// Every rank gets the logits of all rows and of the whole vocabulary, which no grid divides.
TEST(GridUse, GeneratesAndEvaluatesLikeOneProcess) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool is_tied : {true, false}) {
      const ModelConfig config = small_model(kind, is_tied);
      Found want;
      on_mesh({}, [&](const Mesh& mesh) {
        Model model(config);
        materialise(model, mesh, {});
        want = found_by(model);
      });
      for (const Axes& axes : grids()) {
        on_mesh(axes, [&](const Mesh& mesh) {
          Model model(config);
          const std::vector<int64_t> ids{kRows, kLength};
          const AppliedPlan plan = apply(plan_of(config, mesh), model, mesh, {ids, ids}, {ids});
          materialise(model, mesh, plan);
          const Found got = found_by(model);
          EXPECT_TRUE(is_close(got.logits, want.logits, 1e-12)) << kind.name;
          EXPECT_TRUE(is_close(got.next, want.next, 1e-12)) << kind.name;
          const Layout summed = Layout::all(mesh, Invariant{});
          const at::Tensor loss = redistribute(got.loss, plan.loss_layout(), summed, mesh);
          EXPECT_TRUE(is_close(loss, want.loss, 1e-12)) << kind.name;
          EXPECT_EQ(plan.num_row_parts(), mesh.has("a") || mesh.has("depth") ? 4 : 2);
        });
      }
    }
  }
}

// ---- what is refused, before there is memory ----

std::string refusal(const ModelConfig& config, const Axes& axes) {
  return message_of<UsageError>(
      [&] { (void)plan_of(config, Mesh::create(make_record_world(0, num_ranks(axes)), axes)); });
}

TEST(GridUse, RefusesOtherGrids) {
  const ModelConfig config{.width = 96, .heads = 8, .context = 8, .vocabulary = 50};
  EXPECT_THAT(refusal(config, {{"row", 2}, {"col", 4}}),
              AllOf(HasSubstr("[tensor_2d] row x col: 8 ranks are not a square"), HasSubstr("do: use 4 or 9")));
  EXPECT_THAT(refusal(config, {{"row", 2}, {"col", 8}}),
              AllOf(HasSubstr("axes of different sizes"), HasSubstr("do: use 4 each")));
  EXPECT_THAT(refusal(config, {{"a", 3}, {"b", 3}, {"c", 1}}),
              AllOf(HasSubstr("9 ranks are not a cube"), HasSubstr("do: use 8 or 27")));
  EXPECT_THAT(refusal(config, {{"row", 3}, {"col", 3}}),
              AllOf(HasSubstr("divides 8 heads by 3"), HasSubstr("do: use 4 or 16 or 64")));
  EXPECT_THAT(refusal(config, {{"a", 8}, {"b", 8}, {"c", 8}}),
              AllOf(HasSubstr("divides 96 features by 64"), HasSubstr("do: use 8 or 64")));
  ModelConfig grouped = config;
  grouped.arch = Architecture::llama();
  grouped.kv_heads = 2;
  EXPECT_THAT(refusal(grouped, {{"row", 4}, {"col", 4}}),
              AllOf(HasSubstr("divides 2 heads of keys and values by 4"), HasSubstr("do: use 4")));
}

TEST(GridUse, RefusesRowsThatDoNotDivide) {
  const ModelConfig config = small_model(Architecture::gpt2(), true);
  for (const Axes& axes : grids()) {
    const Mesh mesh = Mesh::create(make_record_world(0, num_ranks(axes)), axes);
    Model model(config);
    const std::vector<int64_t> ids{3, kLength};
    EXPECT_THAT(message_of<ShapeError>([&] {
                  (void)apply(plan_of(config, mesh), model, mesh, {ids, ids}, {ids});
                }),
                AllOf(HasSubstr("dim 0 has 3 elements, not divisible by axis"), HasSubstr("from {1, 3}")));
  }
}

}  // namespace
}  // namespace caravan::testing::grid_use_test
