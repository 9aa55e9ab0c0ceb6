#include "caravan/optim/grad_norm.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/engine/parameters.h"

namespace caravan::testing::grad_norm_test {
namespace {

const Placement kI = Invariant{};

/// The norm that each rank computes for gradients of these layouts, and the norm of the whole tensors.
struct Norms {
  std::vector<double> found;
  double whole = 0;
  int64_t bytes = 0;  ///< that rank 0 sent on the world
};

Norms norms(const Axes& axes, const std::vector<Layout>& layouts) {
  Norms result;
  result.found.resize(num_ranks(axes));
  std::vector<Pieces> pieces;
  double squares = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const at::Tensor whole = random_tensor({6, 12}, i + 1).to(at::kFloat);
    squares += whole.to(at::kDouble).square().sum().item<double>();
    pieces.push_back(from_global(axes, whole, layouts[i]));
  }
  result.whole = std::sqrt(squares);
  on_mesh(axes, [&](const Mesh& mesh) {
    std::vector<Parameters::Spec> specs;
    for (size_t i = 0; i < layouts.size(); ++i) specs.push_back({"w" + std::to_string(i), {6, 12}});
    Parameters model(specs);
    Strategy strategy = whole_model(model, mesh);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout rest = layouts[i].completed(mesh, kI);
      strategy.layouts.at("w" + std::to_string(i)) = {rest, rest};
    }
    Engine engine(model, mesh, strategy);
    FlatState& state = engine.state();
    const std::vector<Parameter*> all = model.parameters();
    for (size_t i = 0; i < layouts.size(); ++i) {
      state.layout.view(state.gradients, *all[i]).copy_(pieces[i].local[mesh.rank()]);
    }
    const int64_t before = mesh.world().traffic().total_bytes();
    result.found[mesh.rank()] = grad_norm(state, mesh);
    if (mesh.rank() == 0) result.bytes = mesh.world().traffic().total_bytes() - before;
  });
  return result;
}

std::vector<Layout> every_rest_layout() {
  const std::vector<Placement> placements{kI, Shard{0}, Shard{1}, Shard{0, {}, 1, 6}};
  std::vector<Layout> layouts;
  for (const Placement& a : placements) {
    for (const Placement& b : placements) {
      if (b.owner() >= 0 && a.is_shard(0)) continue;  // the owner would hold only the rows of a's part
      layouts.push_back({{"a", a}, {"b", b}});
    }
  }
  layouts.push_back({{"b", Shard{0, {1, 5, 0}}}, {"a", kI}});
  return layouts;
}

/// fp64 sums of fp32 dot products of at most 72 terms: 1e-6 is above their rounding, and a term that is counted twice
/// changes the norm by more than 1e-3.
TEST(GradNorm, MatchesTheWholeModelForEveryShardedLayout) {
  const Axes axes{{"a", 2}, {"b", 3}};
  const Norms mixed = norms(axes, every_rest_layout());
  for (const double norm : mixed.found) {
    EXPECT_EQ(norm, mixed.found[0]);  // the same bits, so that all ranks clip alike
    EXPECT_NEAR(norm / mixed.whole, 1, 1e-6);
  }
  for (const Layout& layout : every_rest_layout()) {
    const Norms one = norms(axes, {layout});
    EXPECT_NEAR(one.found[5] / one.whole, 1, 1e-6) << layout.to_string();
  }
}

TEST(GradNorm, SendsOneExactSum) {
  EXPECT_EQ(norms({{"a", 1}, {"b", 1}}, {{{"a", kI}, {"b", Shard{0}}}}).bytes, 0);
  EXPECT_EQ(norms({{"a", 2}, {"b", 1}}, {{{"a", kI}, {"b", Shard{0}}}}).bytes, 560);  // 2 (n - 1) / n of 560 bytes
  EXPECT_EQ(norms({{"a", 2}}, {{{"a", Shard{0}}}}).bytes, 560);
}

/// The sums of unlike processors differ in their last bits; here rank 1 has another gradient in their stead.
TEST(GradNorm, IsRank0sIfEveryRankCouldComputeIt) {
  std::vector<double> found(3);
  on_mesh({{"a", 3}}, [&](const Mesh& mesh) {
    Parameters model{{"w", {4}}};
    Engine engine(model, mesh, whole_model(model, mesh));
    FlatState& state = engine.state();
    state.layout.view(state.gradients, model.at("w")).fill_(mesh.rank() == 1 ? 1 + 1e-6 : 1);
    found[static_cast<size_t>(mesh.rank())] = grad_norm(state, mesh);
  });
  EXPECT_EQ(found, std::vector<double>(3, 2));
}

/// Shards of every size, with scalars that every rank has, count each element once.
TEST(GradNorm, MatchesTheWholeModelIfParametersAreCutAtRows) {
  const std::vector<Parameters::Spec> specs{{"odd", {7, 3}}, {"row", {1, 5}}, {"bias", {3}, false}, {"scalar", {}}};
  double squares = 0;
  for (const Parameters::Spec& spec : specs) squares += Parameters::weights(spec.shape).square().sum().item<double>();
  for (const int n : {1, 2, 3, 4}) {
    on_mesh({{"dp", n}}, [&](const Mesh& mesh) {
      Parameters model(specs);
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      if (n > 1) shard_at_rows(strategy, mesh, "dp");
      Engine engine(model, mesh, strategy);
      FlatState& state = engine.state();
      for (const Parameter* parameter : model.parameters()) {
        const at::Tensor gradient = Parameters::weights(parameter->global_shape());
        state.layout.view(state.gradients, *parameter).copy_(piece_of(gradient, parameter->sharded_layout(), mesh));
      }
      EXPECT_EQ(grad_norm(state, mesh), std::sqrt(squares));  // squares of small integers: exact
    });
  }
}

/// Ranks of another coordinate of `apart` have their own gradients and take no part.
TEST(GradNorm, MatchesTheRanksThatStepTogether) {
  std::vector<double> found(4);
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    Parameters model{{"w", {4}}};
    Strategy strategy = whole_model(model, mesh);
    Engine engine(model, mesh, strategy);
    FlatState& state = engine.state();
    state.layout.view(state.gradients, model.at("w")).fill_(1 + mesh["dp"].coord());
    const int64_t before = mesh.bytes_sent();
    found[static_cast<size_t>(mesh.rank())] = grad_norm(state, mesh, "dp", mesh["tp"].comm());
    EXPECT_EQ(mesh.bytes_sent() - before, 560);
  });
  EXPECT_EQ(found, (std::vector<double>{2, 2, 4, 4}));
}

TEST(GradNorm, AddsLargeModelsInFp64) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters model{{"w", {3, 1 << 20}}};
    Engine engine(model, mesh, whole_model(model, mesh));
    FlatState& state = engine.state();
    state.gradients.narrow(0, state.layout.trained_count()).fill_(0.1F);
    const double want = static_cast<double>(0.1F) * std::sqrt(3.0 * (1 << 20));
    // Pieces of 2^14 products in fp32, added in fp64. One fp32 sum of 3 million equal terms is off by 1e-3 or more.
    EXPECT_NEAR(grad_norm(state, mesh) / want, 1, 1e-4);
  });
}

TEST(ClipGradNorm, ScalesOnlyWhatIsTooLong) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters model{{"w", {4}}};
    Engine engine(model, mesh, whole_model(model, mesh));
    FlatState& state = engine.state();
    const at::Tensor gradient = state.layout.view(state.gradients, model.at("w"));
    gradient.fill_(1);
    ASSERT_EQ(grad_norm(state, mesh), 2);
    clip_grad_norm(state, 2, 0);
    clip_grad_norm(state, 2, 2);
    clip_grad_norm(state, 2, 3);
    EXPECT_TRUE(at::equal(gradient, at::ones({4})));
    clip_grad_norm(state, 2, 0.5);
    EXPECT_TRUE(at::equal(gradient, at::full({4}, 0.25F)));
  });
}

}  // namespace
}  // namespace caravan::testing::grad_norm_test
