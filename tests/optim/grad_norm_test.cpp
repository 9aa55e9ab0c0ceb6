#include "caravan/optim/grad_norm.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/engine/parameters.h"

namespace caravan::testing {
namespace {

using ::testing::HasSubstr;

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
    std::vector<std::unique_ptr<Parameter>> parameters;
    std::vector<Parameter*> all;
    for (size_t i = 0; i < layouts.size(); ++i) {
      parameters.push_back(std::make_unique<Parameter>("w" + std::to_string(i), ParameterSpec{.shape = {6, 12}}));
      parameters[i]->set_rest(at::zeros_like(pieces[i].local[mesh.rank()]).requires_grad_(), layouts[i]);
      all.push_back(parameters[i].get());
    }
    FlatState state = flatten(all, mesh.world());
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
TEST(GradNorm, IsThatOfTheWholeModelForEveryRestLayout) {
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

TEST(GradNorm, SendsOneScalar) {
  EXPECT_EQ(norms({{"a", 1}, {"b", 1}}, {{{"a", kI}, {"b", Shard{0}}}}).bytes, 0);
  EXPECT_EQ(norms({{"a", 2}, {"b", 1}}, {{{"a", kI}, {"b", Shard{0}}}}).bytes, 8);  // 2 (n - 1) / n of 8 bytes
  EXPECT_EQ(norms({{"a", 2}}, {{{"a", Shard{0}}}}).bytes, 8);
}

/// The sums of unlike processors differ in their last bits; here rank 1 has another gradient in their stead.
TEST(GradNorm, IsRank0sWhereEveryRankCouldComputeIt) {
  std::vector<double> found(3);
  on_mesh({{"a", 3}}, [&](const Mesh& mesh) {
    Parameter w("w", ParameterSpec{.shape = {4}});
    w.set_rest(at::zeros({4}).requires_grad_(), {{"a", kI}});
    FlatState state = flatten({&w}, mesh.world());
    state.layout.view(state.gradients, w).fill_(mesh.rank() == 1 ? 1 + 1e-6 : 1);
    found[static_cast<size_t>(mesh.rank())] = grad_norm(state, mesh);
  });
  EXPECT_EQ(found, std::vector<double>(3, 2));
}

TEST(GradNorm, RefusesADebtThatIsNotPaid) {
  for (const Placement& owed : {Placement(Partial{}), Placement(Replicate{})}) {
    EXPECT_THAT(message_of<LayoutError>([&] {
                  norms({{"a", 2}}, {{{"a", owed}}});
                }),
                HasSubstr("w0: rests " + owed.to_string() + " on axis a"));
  }
}

TEST(GradNorm, AddsLargeModelsInFp64) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters parameters{{"w", {3, 1 << 20}}};
    FlatState state = flatten(parameters.all(), mesh.world());
    state.gradients.fill_(0.1F);
    const double want = static_cast<double>(0.1F) * std::sqrt(3.0 * (1 << 20));
    // Pieces of 2^18 products in fp32, added in fp64. One fp32 sum of 3 million equal terms is off by 1e-3 or more.
    EXPECT_NEAR(grad_norm(state, mesh) / want, 1, 1e-4);
  });
}

TEST(ClipGradNorm, ScalesOnlyWhatIsTooLong) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters parameters{{"w", {4}}};
    FlatState state = flatten(parameters.all(), mesh.world());
    const at::Tensor gradient = state.layout.view(state.gradients, parameters.at("w"));
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
}  // namespace caravan::testing
