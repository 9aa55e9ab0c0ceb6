#include <random>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/infer.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::programs_test {
namespace {

const Axes kMesh{{"a", 2}, {"b", 3}};
const std::vector<Placement> kPlacements{Replicate{}, Invariant{}, Partial{}, Shard{0}, Shard{1}};

using Random = std::mt19937;
int pick(Random& random, size_t count) { return static_cast<int>(random() % count); }

// ---- random well-typed programs ----

struct Op {
  OpType type;
  int num_operands;
  at::Tensor (*run)(const at::Tensor&, const at::Tensor&);
};

const std::vector<Op>& ops() {
  static const std::vector<Op> all{
      {{"ij->ij", "", {}}, 1, [](const at::Tensor& x, const at::Tensor&) { return x.tanh(); }},
      {{"ij->ji", "", {{0}}}, 1, [](const at::Tensor& x, const at::Tensor&) { return x.t(); }},
      {{"ij,ij->ij", "", {{0}, {1}}}, 2, [](const at::Tensor& x, const at::Tensor& y) { return x + y; }},
      {{"ij,ij->ij", "", {{0, 1}}}, 2, [](const at::Tensor& x, const at::Tensor& y) { return x * y; }},
      {{"ik,jk->ij", "", {{0, 1}}}, 2, [](const at::Tensor& x, const at::Tensor& y) { return 0.3 * x.matmul(y.t()); }},
  };
  return all;
}

/// One line of a program: a redistribution of value `first`, or an op on values `first` and `second`.
struct Line {
  int op;  ///< -1: redistribute
  int first;
  int second;
  std::string axis;
  Placement to;
  Layout result;
};

struct Program {
  std::vector<Layout> leaves;
  std::vector<Line> lines;
  int num_refused = 0;

  const Layout& layout(int value) const {
    const int num_leaves = static_cast<int>(leaves.size());
    return value < num_leaves ? leaves[value] : lines[value - num_leaves].result;
  }
};

/// A layout of both axes in random order.
Layout random_layout(Random& random) {
  std::vector<Layout::Entry> entries{{"a", kPlacements[pick(random, 5)]}, {"b", kPlacements[pick(random, 5)]}};
  if (pick(random, 2) == 0) std::swap(entries[0], entries[1]);
  return Layout(entries);
}

Line random_line(Random& random, const Program& program) {
  const size_t num_values = program.leaves.size() + program.lines.size();
  Line line{-1,
            pick(random, num_values),
            pick(random, num_values),
            random() % 2 == 0 ? "a" : "b",
            kPlacements[pick(random, 5)],
            {}};
  const bool moves = pick(random, 100) < 45;
  if (!moves) line.op = pick(random, ops().size());
  if (moves) {
    const Layout& from = program.layout(line.first);
    const Placement& placement = from[line.axis];
    if (placement.is_shard() && from.sharding(placement.dim()).back() != line.axis)
      throw LayoutError({"program", "", "not minor", "", ""});
    line.result = from.moved(line.axis, line.to);
    return line;
  }
  std::vector<Layout> operands{program.layout(line.first)};
  if (ops()[line.op].num_operands == 2) operands.push_back(program.layout(line.second));
  line.result = infer(ops()[line.op].type, operands);
  return line;
}

Program random_program(uint32_t seed, int num_lines) {
  Random random(seed);
  Program program;
  for (int i = 0; i < 3; ++i) program.leaves.push_back(random_layout(random));
  while (static_cast<int>(program.lines.size()) < num_lines) {
    try {
      program.lines.push_back(random_line(random, program));
    } catch (const LayoutError&) {
      ++program.num_refused;
    }
  }
  return program;
}

/// Runs the program on autograd leaves; without a mesh, redistributions do nothing. Returns the sum of all values, as
/// I.
at::Tensor run(const Program& program, std::vector<at::Tensor> values, const Mesh* mesh) {
  for (const Line& line : program.lines) {
    const at::Tensor& first = values[line.first];
    values.push_back(line.op >= 0      ? ops()[line.op].run(first, values[line.second])
                     : mesh == nullptr ? first
                                       : redistribute(first, program.layout(line.first), (*mesh)[line.axis], line.to));
  }
  at::Tensor loss;
  for (size_t i = 0; i < values.size(); ++i) {
    at::Tensor sum = values[i].sum();
    if (mesh != nullptr) {
      const Layout& layout = program.layout(static_cast<int>(i));
      const Layout of_sum = infer({"ij->", "", {{0}}}, std::vector<Layout>{layout});
      sum = redistribute(sum, of_sum, Layout::all(*mesh, Invariant{}), *mesh);
    }
    loss = loss.defined() ? loss + sum : sum;
  }
  return loss;
}

TEST(Programs, RandomWellTypedProgramsEqualOneProcess) {
  constexpr int kPrograms = 150;
  std::vector<Program> programs;
  std::vector<std::vector<at::Tensor>> wholes(kPrograms);
  std::vector<std::vector<Pieces>> pieces(kPrograms);
  std::vector<Pieces> losses;
  for (int p = 0; p < kPrograms; ++p) {
    programs.push_back(random_program(p, 18));
    for (int k = 0; k < 3; ++k) {
      wholes[p].push_back(random_tensor({6, 6}, 100 * p + k).requires_grad_());
      pieces[p].push_back(leaves(from_global(kMesh, wholes[p][k], programs[p].leaves[k], k)));
    }
    losses.push_back(no_pieces(kMesh, {{"a", Invariant{}}, {"b", Invariant{}}}));
  }
  on_mesh(kMesh, [&](const Mesh& mesh) {
    for (int p = 0; p < kPrograms; ++p) {
      std::vector<at::Tensor> values;
      for (const Pieces& leaf : pieces[p]) values.push_back(leaf.local[mesh.rank()]);
      const at::Tensor loss = run(programs[p], values, &mesh);
      backward(loss, losses[p].layout);
      losses[p].local[mesh.rank()] = loss.detach();
    }
  });
  int num_refused = 0;
  for (int p = 0; p < kPrograms; ++p) {
    const at::Tensor loss = run(programs[p], wholes[p], nullptr);
    loss.backward();
    EXPECT_TRUE(is_close(try_to_global(losses[p]), loss)) << "loss of program " << p;
    for (int k = 0; k < 3; ++k) {
      EXPECT_TRUE(is_close(try_to_global(gradients(pieces[p][k])), wholes[p][k].grad(), 1e-9))
          << "program " << p << " leaf " << k;
    }
    num_refused += programs[p].num_refused;
  }
  EXPECT_GT(num_refused, 100);  // the generator does produce ill-typed lines
}

// ---- whole layouts ----

TEST(Layouts, EveryLayoutReachesEveryOther) {
  const at::Tensor x = random_tensor({6, 6}, 1);
  const at::Tensor g = random_tensor({6, 6}, 2);
  std::vector<Layout> layouts;
  for (const Placement& pa : kPlacements) {
    for (const Placement& pb : kPlacements) {
      layouts.push_back({{"a", pa}, {"b", pb}});
      if (pa.is_shard() && pa == pb) layouts.push_back({{"b", pb}, {"a", pa}});
    }
  }
  layouts.push_back({{"a", Shard{0}}, {"b", Shard{0, {}, 1, 3}}});
  layouts.push_back({{"a", Shard{0, {2, 4}}}, {"b", Shard{1, {1, 5, 0}}}});
  struct Case {
    Layout from, to;
    Pieces x, g, y;
  };
  std::vector<Case> cases;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const size_t seed = cases.size();
      cases.push_back({from, to, leaves(from_global(kMesh, x, from, seed)), from_global(kMesh, g, to.dual(), seed),
                       no_pieces(kMesh, to)});
    }
  }
  on_mesh(kMesh, [&](const Mesh& mesh) {
    for (Case& each : cases) {
      const at::Tensor y = redistribute(each.x.local[mesh.rank()], each.from, each.to, mesh, "x");
      y.backward(each.g.local[mesh.rank()]);
      each.y.local[mesh.rank()] = y.detach();
    }
  });
  for (const Case& each : cases) {
    EXPECT_TRUE(is_close(try_to_global(each.y), x)) << each.from.to_string() << " -> " << each.to.to_string();
    EXPECT_TRUE(is_close(try_to_global(gradients(each.x)), g))
        << each.from.to_string() << " -> " << each.to.to_string();
  }
}

TEST(Layouts, StepsThatShrinkThePieceComeFirst) {
  const Axes axes{{"rep", 2}, {"shard", 4}};
  on_mesh(axes, [](const Mesh& mesh) {
    const at::Tensor g = at::ones({8, 8}, at::kDouble);
    redistribute(g, {{"rep", Partial{}}, {"shard", Partial{}}}, {{"rep", Invariant{}}, {"shard", Shard{0}}}, mesh);
    EXPECT_EQ(mesh["shard"].comm().traffic().total_bytes(), 3 * 64 * 8 / 4);  // reduce-scatter of the whole
    EXPECT_EQ(mesh["rep"].comm().traffic().total_bytes(), 64 * 8 / 4);        // all-reduce of a quarter
  });
}

TEST(Layouts, MustNameTheSameAxes) {
  on_mesh(kMesh, [](const Mesh& mesh) {
    EXPECT_TRUE(is_refused([&] { redistribute(at::ones({6}), {{"a", Replicate{}}}, {{"b", Replicate{}}}, mesh); }));
  });
}

// ---- double backward: the law is an involution, so the backward of the backward is the forward ----

at::Tensor penalty_of_one_process(const at::Tensor& w0, const at::Tensor& x) {
  const at::Tensor w = w0.clone().requires_grad_();
  const at::Tensor y = x.matmul(w.t()).tanh();
  const at::Tensor g = torch::autograd::grad({y.matmul(w).square().sum()}, {w}, {}, true, true)[0];
  g.square().sum().backward();
  return w.grad();
}

TEST(Law, DoubleBackwardEqualsOneProcess) {
  const Axes axes{{"dp", 3}};
  const at::Tensor w0 = random_tensor({6, 6}, 1);
  const at::Tensor x0 = random_tensor({6, 6}, 2);
  const at::Tensor want = penalty_of_one_process(w0, x0);
  const Placement even = Shard{0};
  for (const Placement& rest : {Placement(Invariant{}), even, Placement(Shard{1}), Placement(Shard{0, {1, 5, 0}}),
                                Placement(Shard{0, {}, 1, 6})}) {
    const Pieces w = leaves(from_global(axes, w0, {{"dp", rest}}));
    const Pieces x = from_global(axes, x0, {{"dp", even}});
    on_mesh(axes, [&](const Mesh& mesh) {
      const MeshAxis& dp = mesh["dp"];
      const at::Tensor leaf = w.local[mesh.rank()];
      const at::Tensor full = redistribute(leaf, {{"dp", rest}}, dp, Replicate{});
      const at::Tensor y = x.local[mesh.rank()].matmul(full.t()).tanh();
      const at::Tensor loss = redistribute(y.matmul(full).square().sum(), {{"dp", Partial{}}}, dp, Invariant{});
      const at::Tensor g = torch::autograd::grad({loss}, {leaf}, {}, true, true)[0];
      const Placement squares = rest.is_shard() ? Placement(Partial{}) : Placement(Invariant{});
      backward(redistribute(g.square().sum(), {{"dp", squares}}, dp, Invariant{}), {{"dp", Invariant{}}});
    });
    EXPECT_TRUE(is_close(try_to_global(gradients(w)), want)) << rest.to_string();
  }
}

}  // namespace
}  // namespace caravan::testing::programs_test
