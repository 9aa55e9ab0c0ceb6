#include <gtest/gtest.h>

#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/laws.h"

namespace caravan::testing::table_test {
namespace {

void expect_no_fault(const Checked& checked, int at_least) {
  EXPECT_GE(checked.num_checked, at_least);
  EXPECT_EQ(checked.wrong.size(), 0U);
  for (size_t i = 0; i < checked.wrong.size() && i < 10; ++i) ADD_FAILURE() << checked.wrong[i];
}

class OneAxis : public ::testing::TestWithParam<int> {};

TEST_P(OneAxis, EveryCellIsTheIdentityOnTheGlobalTensorAndItsGradient) {
  const Checked checked = check_cells({{"t", GetParam()}}, library_law());
  expect_no_fault(checked, 100);
  EXPECT_EQ(checked.num_refused, 0);
}

TEST_P(OneAxis, EveryCellOfBlockedShards) {
  const Checked checked = check_blocked_cells({{"t", GetParam()}}, library_law());
  expect_no_fault(checked, 100);
  EXPECT_EQ(checked.num_refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, OneAxis, ::testing::Values(1, 2, 3, 4));

class TwoAxes : public ::testing::TestWithParam<Axes> {};

TEST_P(TwoAxes, EveryCellAroundEveryPlacementOfASecondAxisInBothOrders) {
  const Checked checked = check_cells(GetParam(), library_law());
  expect_no_fault(checked, 900);
  // Leaving a dim on which t is major throws: from each placement of t on o's dim (S(0), an owner; S(1); S(2), an
  // owner) to each of the other nine.
  EXPECT_EQ(checked.num_refused, (2 + 1 + 2) * 9);
}

/// Where t is major on a dim that o cuts, it can leave it for nothing.
TEST_P(TwoAxes, EveryCellOfBlockedShardsInBothOrders) {
  const Checked checked = check_blocked_cells(GetParam(), library_law());
  expect_no_fault(checked, 900);
  EXPECT_GT(checked.num_refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, TwoAxes,
                         ::testing::Values(Axes{{"o", 2}, {"t", 3}}, Axes{{"t", 2}, {"o", 2}},
                                           Axes{{"o", 1}, {"t", 2}}));

TEST(Table, PathsDoNotMatter) { expect_no_fault(check_paths(3, library_law()), 500); }

/// Layouts with several axes on a blocked dim: each stays the same tensor, and the gradient is that of the whole.
TEST(Blocked, RedistributesBetweenLayoutsOfTwoAxes) {
  const Axes axes{{"a", 2}, {"b", 3}};
  const auto blocked = [](int blocks, std::vector<int64_t> sizes = {}) {
    return Placement(Shard{.dim = 0, .sizes = std::move(sizes), .blocks = blocks});
  };
  const Placement whole = Replicate{};
  const std::vector<Layout> layouts{{{"a", blocked(2)}, {"b", blocked(3)}},
                                    {{"b", blocked(2)}, {"a", blocked(2)}},
                                    {{"a", blocked(3, {8, 4})}, {"b", whole}},
                                    {{"b", blocked(2)}, {"a", blocked(2, {5, 1})}},
                                    {{"a", blocked(3)}, {"b", Shard{0}}},
                                    {{"b", Shard{0}}, {"a", blocked(3)}},
                                    {{"a", Shard{1}}, {"b", blocked(6)}},
                                    {{"a", Shard{0}}, {"b", Shard{0}}},
                                    {{"a", Partial{}}, {"b", blocked(6)}},
                                    {{"a", Invariant{}}, {"b", blocked(1, {9, 0, 27})}},
                                    {{"a", whole}, {"b", whole}}};
  const at::Tensor x = random_tensor({36, 2}, 21);
  const at::Tensor g = random_tensor({36, 2}, 22);
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const Pieces in = leaves(from_global(axes, x, from, 23));
      const Pieces cotangent = from_global(axes, g, to.dual(), 24);
      Pieces out = no_pieces(axes, to);
      on_mesh(axes, [&](const Mesh& mesh) {
        const at::Tensor y = redistribute(in.local[mesh.rank()], from, to, mesh);
        y.backward(cotangent.local[mesh.rank()]);
        out.local[mesh.rank()] = y.detach();
      });
      EXPECT_TRUE(is_close(try_to_global(out), x)) << from.to_string() << " -> " << to.to_string();
      EXPECT_TRUE(is_close(try_to_global(gradients(in)), g)) << from.to_string() << " -> " << to.to_string();
    }
  }
}

/// Axes that one axis of the mesh is made of are not moved as one where blocks cut the dim.
TEST(Blocked, MovesAxesOfAJoinedAxisOneByOne) {
  const Axes axes{{"a", 2}, {"b", 2}};
  const at::Tensor x = random_tensor({16}, 25);
  const Placement blocked = Shard{.dim = 0, .blocks = 2};
  const Layout from{{"a", blocked}, {"b", blocked}};
  const Pieces in = from_global(axes, x, from);
  Pieces out = no_pieces(axes, {{"a", Replicate{}}, {"b", Replicate{}}});
  Pieces cut = no_pieces(axes, from);
  on_mesh(axes, [&](const Mesh& given) {
    const Mesh mesh = given.join("ab", {"a", "b"});
    out.local[mesh.rank()] = redistribute(in.local[mesh.rank()], from, out.layout, mesh);
    cut.local[mesh.rank()] = redistribute(out.local[mesh.rank()], out.layout, from, mesh);
    EXPECT_TRUE(at::equal(cut.local[mesh.rank()], in.local[mesh.rank()]));
  });
  EXPECT_TRUE(is_close(to_global(out), x, 0));
}

/// Directional derivatives by central differences, perturbing the global tensor, through a nonlinear loss: the analytic
/// gradient must be that of one process. Error of the difference: about eps^2 / 6 + 1e-16 / eps, below 1e-9.
TEST_P(OneAxis, EveryCellHasTheGradientOfFiniteDifferences) {
  const int n = GetParam();
  const Axes axes{{"t", n}};
  const double eps = 1e-5;
  const int64_t rows = n == 4 ? 4 : 6;
  const at::Tensor x = random_tensor({rows, rows}, 6);
  const at::Tensor direction = random_tensor({rows, rows}, 7);
  const at::Tensor w = random_tensor({rows, rows}, 8);
  const auto run = [&](const Placement& a, const Placement& b, const at::Tensor& whole, Pieces* gradient) {
    const Pieces in = leaves(from_global(axes, whole, {{"t", a}}, 9));
    const Placement use = b.is_partial() ? Placement(Replicate{}) : b;  // a nonlinear op takes no P
    const Pieces weights = from_global(axes, w, {{"t", use}});
    Pieces out = no_pieces(axes, {{"t", use.is_shard() ? Placement(Partial{}) : use}});
    on_mesh(axes, [&](const Mesh& mesh) {
      const int rank = mesh.rank();
      at::Tensor y = redistribute(in.local[rank], {{"t", a}}, mesh["t"], b);
      y = redistribute(y, {{"t", b}}, mesh["t"], use);
      const at::Tensor sum = (y.tanh() * weights.local[rank]).sum();
      const at::Tensor loss = redistribute(sum, out.layout, mesh["t"], Invariant{});
      if (gradient != nullptr) backward(loss, {{"t", Invariant{}}});
      out.local[rank] = sum.detach();
    });
    if (gradient != nullptr) *gradient = gradients(in);
    return to_global(out).item<double>();
  };
  const auto placements = placements_for(n, {rows, rows});
  for (const Placement& a : placements) {
    for (const Placement& b : placements) {
      Pieces gradient;
      run(a, b, x, &gradient);
      const double difference =
          (run(a, b, x + eps * direction, nullptr) - run(a, b, x - eps * direction, nullptr)) / (2 * eps);
      EXPECT_NEAR(difference, (to_global(gradient) * direction).sum().item<double>(), 1e-8)
          << a.to_string() << " -> " << b.to_string();
    }
  }
}

// Shows that the checks above can fail: the test's own law passes them with the right dual and fails with a wrong one.

TEST(Mutant, TheTestsOwnLawPasses) {
  expect_no_fault(check_cells({{"t", 3}}, law_with_dual(&dual)), 100);
  expect_no_fault(check_paths(2, law_with_dual(&dual)), 500);
}

TEST(Mutant, IdentityInsteadOfTheDualIsCaught) {
  const LawFn law = law_with_dual([](const Placement& p) { return p; });
  EXPECT_GT(check_cells({{"t", 3}}, law).wrong.size(), 20U);
  EXPECT_GT(check_cells({{"o", 2}, {"t", 2}}, law).wrong.size(), 200U);
  EXPECT_GT(check_paths(2, law).wrong.size(), 100U);
}

TEST(Mutant, SwappedReplicateAndInvariantIsCaught) {
  const LawFn law = law_with_dual([](const Placement& p) -> Placement {
    if (p.is_partial()) return Invariant{};
    if (p.is_invariant()) return Partial{};
    return p;
  });
  EXPECT_GT(check_cells({{"t", 3}}, law).wrong.size(), 20U);
  EXPECT_GT(check_paths(2, law).wrong.size(), 100U);
}

}  // namespace
}  // namespace caravan::testing::table_test
