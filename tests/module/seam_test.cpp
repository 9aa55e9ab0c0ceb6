#include <map>

#include <gtest/gtest.h>

#include "caravan/nn/model.h"
#include "tests/module/techniques/column_row_split.h"
#include "tests/module/techniques/gather_use_free.h"
#include "tests/module/techniques/two_stages.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

/// The proof of the seam: three techniques, each under 60 lines and applied from outside, give the loss and every
/// gradient of one process. fp64, so that a wrong or missing term cannot hide in rounding.

constexpr int64_t kBatch = 6;
constexpr int64_t kLength = 8;

ModelConfig config_of(ModelKind kind, bool tied) {
  return {.kind = kind,
          .layers = 2,
          .width = 16,
          .heads = 4,
          .kv_heads = kind == ModelKind::llama ? 2 : 0,
          .context = kLength,
          .vocabulary = 24,
          .hidden = 24,
          .tie_embeddings = tied};
}

Module::MaterialiseOptions in_fp64() {
  return {.seed = 7, .allocate = [](const Parameter&, const std::vector<int64_t>& shape) {
            return at::empty(shape, at::kDouble);
          }};
}

struct Batch {
  at::Tensor ids, labels;
  ForwardContext context{.loss_scale = 1.0 / (kBatch * kLength - 1)};
};

Batch batch() {
  const at::Tensor ids = at::arange(kBatch * (kLength + 1)).mul(7).remainder(24).view({kBatch, kLength + 1});
  Batch batch{ids.narrow(1, 0, kLength).contiguous(), ids.narrow(1, 1, kLength).contiguous()};
  batch.labels[0][0] = -100;  // a token without a target: the ranks' counts differ
  return batch;
}

/// What one rank found: the loss it holds, and its piece of every gradient.
struct Found {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, Layout> layouts;
};

Found found(const at::Tensor& loss, const Module& model) {
  Found result{loss.detach(), {}, {}};
  for (const Parameter* parameter : model.parameters()) {
    const at::Tensor& gradient = parameter->rest().grad();
    result.gradients[parameter->name()] = gradient.defined() ? gradient : at::zeros_like(parameter->rest());
    result.layouts[parameter->name()] = parameter->rest_layout();
  }
  return result;
}

using Technique = std::function<Found(Model& model, const Mesh& mesh, const Batch& batch)>;

Found one_process(const ModelConfig& config) {
  Found result;
  on_mesh({{"x", 1}}, [&](const Mesh& mesh) {
    Model model(config);
    model.materialise(mesh, {}, in_fp64());
    const Batch whole = batch();
    const at::Tensor loss = model.run({whole.ids, whole.labels}, whole.context)[0];
    loss.backward();
    result = found(loss, model);
  });
  return result;
}

void expect_one_process(const ModelConfig& config, int n, const Placement& loss_placement, const Technique& technique) {
  const Axes axes{{"x", n}};
  std::vector<Found> ranks(n);
  on_mesh(axes, [&](const Mesh& mesh) {
    Model model(config);
    ranks[mesh.rank()] = technique(model, mesh, batch());
  });
  const Found want = one_process(config);
  const auto whole = [&](const Layout& layout, const auto& piece_of) {
    Pieces pieces = no_pieces(axes, layout);
    for (int rank = 0; rank < n; ++rank) pieces.local[rank] = piece_of(ranks[rank]);
    return try_to_global(pieces);
  };
  EXPECT_TRUE(is_close(whole({{"x", loss_placement}}, [](const Found& rank) { return rank.loss; }), want.loss));
  EXPECT_GT(want.gradients.size(), 10U);
  for (const auto& [name, gradient] : want.gradients) {
    EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
    const auto piece_of = [&, key = name](const Found& rank) { return rank.gradients.at(key); };
    EXPECT_TRUE(is_close(whole(ranks[0].layouts.at(name), piece_of), gradient)) << name << " on " << n << " ranks";
  }
}

struct SeamCase {
  ModelKind kind;
  bool tied;
};

class Seam : public ::testing::TestWithParam<SeamCase> {
 protected:
  ModelConfig config() const { return config_of(GetParam().kind, GetParam().tied); }
};

TEST_P(Seam, AColumnRowSplit) {
  for (const int n : {1, 2}) {
    expect_one_process(config(), n, Invariant{}, [](Model& model, const Mesh& mesh, const Batch& batch) {
      model.materialise(mesh, ColumnRowSplit::layouts(model, "x"), in_fp64());
      ColumnRowSplit::apply(model, mesh["x"]);
      const at::Tensor loss = model.run({batch.ids, batch.labels}, batch.context)[0];
      backward(loss, {{"x", Invariant{}}});
      return found(loss, model);
    });
  }
}

TEST_P(Seam, GatheringUsingAndFreeingParameters) {
  for (const int n : {1, 2}) {
    expect_one_process(config(), n, Partial{}, [n](Model& model, const Mesh& mesh, const Batch& batch) {
      std::map<std::string, Layout> layouts;
      for (const Parameter* parameter : model.parameters()) layouts[parameter->name()] = {{"x", Shard{0}}};
      model.materialise(mesh, layouts, in_fp64());
      const GatherUseFree technique(model, mesh["x"]);
      const auto held_bytes = [&] {
        size_t bytes = 0;
        for (const Parameter* parameter : model.parameters()) bytes += parameter->compute().storage().nbytes();
        return bytes;
      };
      const int64_t rows = kBatch / n;
      const auto mine = [&](const at::Tensor& x) { return x.narrow(0, mesh.rank() * rows, rows); };
      const at::Tensor loss = model.run({mine(batch.ids), mine(batch.labels)}, batch.context)[0];
      EXPECT_EQ(held_bytes(), 0U) << "between forward and backward";
      backward(loss, {{"x", Partial{}}});
      EXPECT_EQ(held_bytes(), 0U) << "after backward";
      return found(loss, model);
    });
  }
}

TEST_P(Seam, ACutIntoTwoStages) {
  for (const size_t cut : {1, 2, 3}) {
    expect_one_process(config(), 2, Partial{}, [&](Model& model, const Mesh& mesh, const Batch& batch) {
      TwoStages stages(model, cut);
      model.materialise(mesh, stages.layouts("x"), in_fp64());
      const at::Tensor loss = stages.run(batch.ids, batch.labels, model.config().width, batch.context, mesh["x"]);
      backward(loss, {{"x", Partial{}}});
      return found(loss, model);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Seam,
                         ::testing::Values(SeamCase{ModelKind::gpt2, true}, SeamCase{ModelKind::gpt2, false},
                                           SeamCase{ModelKind::llama, true}, SeamCase{ModelKind::llama, false}),
                         [](const auto& info) {
                           return std::string(name(info.param.kind)) + (info.param.tied ? "_tied" : "_untied");
                         });

}  // namespace
}  // namespace caravan::testing
