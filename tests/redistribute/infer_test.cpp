#include "caravan/redistribute/infer.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::infer_test {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Groups = std::vector<std::vector<int>>;

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kP = Partial{};
Placement shard(int dim) { return Shard{dim}; }

const Groups kProduct{{0, 1}};
const Groups kSum{{0}, {1}};

struct Op {
  OpType type;
  at::Tensor (*run)(const Tensors&);
};

const std::vector<Op>& ops() {
  static const std::vector<Op> all{
      {{"ij,ij->ij", "", kSum}, [](const Tensors& t) { return t[0] + t[1]; }},
      {{"ij,j->ij", "", kSum}, [](const Tensors& t) { return t[0] + t[1]; }},
      {{"ij,ij->ij", "", kProduct}, [](const Tensors& t) { return t[0] * t[1]; }},
      {{"ij,j->ij", "", kProduct}, [](const Tensors& t) { return t[0] * t[1]; }},
      {{"ik,jk->ij", "", kProduct}, [](const Tensors& t) { return t[0].matmul(t[1].t()); }},
      {{"ij->ij", "", {}}, [](const Tensors& t) { return t[0].tanh(); }},
      {{"ij->ij", "", {{0}}}, [](const Tensors& t) { return 3 * t[0]; }},
      {{"ij->ji", "", {{0}}}, [](const Tensors& t) { return t[0].t(); }},
      {{"ij->i", "", {{0}}}, [](const Tensors& t) { return t[0].sum(1); }},
      {{"ij->i", "", {}}, [](const Tensors& t) { return t[0].square().sum(1); }},
      {{"ij->ij", "j", {}}, [](const Tensors& t) { return t[0].softmax(1); }},
      {{"ij,ij->ij", "", {}}, [](const Tensors& t) { return (t[0] + t[1]).tanh(); }},
      {{"ij,ij->ij", "", {{1}}}, [](const Tensors& t) { return t[0].tanh() * t[1]; }},
  };
  return all;
}

std::vector<std::string> inputs_of(std::string_view labels) {
  std::vector<std::string> inputs{""};
  for (const char c : labels.substr(0, labels.find("->"))) c == ',' ? inputs.push_back("") : inputs.back().push_back(c);
  return inputs;
}

std::vector<Placement> placements_of(size_t num_dims) {
  std::vector<Placement> all{kR, kI, kP};
  for (size_t dim = 0; dim < num_dims; ++dim) all.push_back(shard(static_cast<int>(dim)));
  return all;
}

/// One op on whole tensors: value, cotangent, gradients.
struct Reference {
  Tensors whole;
  at::Tensor value, cotangent;
  Tensors gradients;
};

Reference reference_of(const Op& op) {
  Reference ref;
  Tensors inputs;
  for (const std::string& labels : inputs_of(op.type.labels)) {
    ref.whole.push_back(random_tensor(std::vector<int64_t>(labels.size(), 6), 10 + ref.whole.size()));
    inputs.push_back(ref.whole.back().clone().requires_grad_());
  }
  ref.value = op.run(inputs);
  ref.cotangent = random_tensor(ref.value.sizes(), 20);
  ref.gradients = torch::autograd::grad({ref.value}, inputs, {ref.cotangent});
  return ref;
}

/// True if the op, run on each rank's pieces, denotes the right value under `output`, and so do all its gradients.
bool is_right(const Op& op, const Reference& ref, const std::vector<Placement>& placements, const Placement& output) {
  const Axes axes{{"t", 3}};
  std::vector<Pieces> args;
  for (size_t i = 0; i < placements.size(); ++i) {
    args.push_back(leaves(from_global(axes, ref.whole[i], {{"t", placements[i]}}, 30 + i)));
  }
  try {
    Pieces y = no_pieces(axes, {{"t", output}});
    for (int rank = 0; rank < 3; ++rank) {
      Tensors local;
      for (const Pieces& arg : args) local.push_back(arg.local[rank]);
      y.local[rank] = op.run(local);
    }
    if (!is_close(try_to_global(y), ref.value)) return false;
    const Pieces g = from_global(axes, ref.cotangent, {{"t", dual(output)}}, 40);
    for (int rank = 0; rank < 3; ++rank) y.local[rank].backward(g.local[rank]);
  } catch (const c10::Error&) {  // the pieces do not even have matching shapes
    return false;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_close(try_to_global(gradients(args[i])), ref.gradients[i])) return false;
  }
  return true;
}

using InferFn = std::function<Placement(const OpType&, std::span<const Operand>)>;

/// The number of combinations of operand placements where `rule` and the numbers disagree.
int num_misjudged(const InferFn& rule, int* num_legal = nullptr) {
  int misjudged = 0;
  for (const Op& op : ops()) {
    const Reference ref = reference_of(op);
    const auto inputs = inputs_of(op.type.labels);
    std::vector<std::vector<Placement>> combinations;
    for (const Placement& first : placements_of(inputs[0].size())) {
      if (inputs.size() == 1) combinations.push_back({first});
      if (inputs.size() == 1) continue;
      for (const Placement& second : placements_of(inputs[1].size())) combinations.push_back({first, second});
    }
    for (const auto& placements : combinations) {
      std::vector<Placement> right;
      for (const Placement& output : placements_of(ref.value.dim())) {
        if (is_right(op, ref, placements, output)) right.push_back(output);
      }
      std::vector<Operand> operands;
      for (const Placement& placement : placements) operands.push_back({placement});
      std::vector<Placement> said;
      try {
        said.push_back(rule(op.type, operands));
      } catch (const LayoutError&) {
      }
      misjudged += right != said;
      if (num_legal != nullptr) *num_legal += static_cast<int>(said.size());
    }
  }
  return misjudged;
}

TEST(Infer, AcceptsExactlyWhatIsNumericallyCorrect) {
  int num_legal = 0;
  EXPECT_EQ(num_misjudged([](const OpType& op, std::span<const Operand> operands) { return infer(op, operands); },
                          &num_legal),
            0);
  EXPECT_GT(num_legal, 50);
}

TEST(Infer, TheBruteForceCatchesRulesThatAreWrong) {
  const auto lenient = [](const OpType& op, std::span<const Operand> operands) {  // I taken for R
    std::vector<Operand> as_replicate(operands.begin(), operands.end());
    for (Operand& operand : as_replicate) {
      if (operand.placement.is_invariant()) operand.placement = Replicate{};
    }
    return infer(op, as_replicate);
  };
  EXPECT_GT(num_misjudged(lenient), 10);
  const auto all_linear = [](const OpType& op, std::span<const Operand> operands) {  // accepts P + R
    OpType product = op;
    product.terms = {{0, 1}};
    return infer(product, operands);
  };
  EXPECT_GT(num_misjudged(all_linear), 3);
}

TEST(Infer, AConstantOperandIsReplicateAndInvariantAtOnce) {
  const Axes axes{{"t", 3}};
  const at::Tensor x = random_tensor({6, 6}, 1);
  const at::Tensor c = random_tensor({6, 6}, 2);
  const at::Tensor g = random_tensor({6, 6}, 3);
  const at::Tensor want = (1 - (x * c).tanh().square()) * c * g;
  for (const Placement& px : {kR, kI}) {
    for (const Placement& pc : {kR, kI}) {
      const std::vector<Operand> operands{{px}, {pc, true}};
      const Placement out = infer({"ij,ij->ij"}, operands);
      EXPECT_EQ(out, px);
      const Pieces in = leaves(from_global(axes, x, {{"t", px}}));
      const Pieces cotangent = from_global(axes, g, {{"t", dual(out)}});
      for (int rank = 0; rank < 3; ++rank) (in.local[rank] * c).tanh().backward(cotangent.local[rank]);
      EXPECT_TRUE(is_close(try_to_global(gradients(in)), want));
    }
  }
  EXPECT_TRUE(is_refused([] { infer({"ij,ij->ij"}, std::vector<Operand>{{kI}, {shard(0), true}}); }));
  EXPECT_EQ(infer({"ij,ij->ij"}, std::vector<Operand>{{shard(0)}, {shard(0), true}}), shard(0));
}

TEST(Infer, SizesAndOwnersGoWithTheirLabel) {
  const Placement uneven = Shard{1, {3, 2, 1}};
  EXPECT_EQ(infer({"ij->ji", "", {{0}}}, std::vector<Operand>{{uneven}}), Placement(Shard{0, {3, 2, 1}}));
  const Placement out =
      infer({"ij,jk->jik", "", kProduct}, std::vector<Operand>{{Shard{1, {}, 2}}, {Shard{0, {}, 2, 6}}});
  EXPECT_EQ(out, Placement(Shard{0, {}, 2}));
  EXPECT_EQ(out.owner_rows(), 6);
  EXPECT_TRUE(is_refused([] { infer({"ij,ij->ij"}, std::vector<Operand>{{Shard{0, {3, 2, 1}}}, {shard(0)}}); }));
}

std::string mend(const OpType& op, const std::vector<Operand>& operands) {
  try {
    infer(op, operands);
  } catch (const LayoutError& error) {
    return error.text().action;
  }
  return "nothing was refused";
}

TEST(Infer, NamesTheRedistributionThatFixesIt) {
  const OpType product{"ij,j->ij", "", kProduct};
  const OpType sum{"ij,j->ij", "", kSum};
  EXPECT_THAT(mend(product, {{shard(0)}, {kI}}), HasSubstr("redistribute operand 1 I -> R first"));
  EXPECT_THAT(mend(sum, {{kP}, {kI}}), HasSubstr("redistribute operand 1 I -> P first"));
  EXPECT_THAT(mend(sum, {{kP}, {kR}}), HasSubstr("redistribute operand 1 R -> P (free), or operand 0 P -> R"));
  EXPECT_THAT(mend(product, {{kP}, {kP}}), HasSubstr("redistribute operand 1 P -> R first"));
  EXPECT_THAT(mend({"ij->ij"}, {{kP}}), HasSubstr("redistribute operand 0 P -> R"));
  EXPECT_THAT(mend(product, {{kP}, {shard(0)}}), HasSubstr("redistribute operand 0 P -> S(1) first"));
  EXPECT_THAT(mend({"ik,jk->ij", "", kProduct}, {{shard(0)}, {shard(0)}}),
              HasSubstr("redistribute operand 1 S(0) -> R first"));
  EXPECT_THAT(mend(product, {{shard(1)}, {kR}}), HasSubstr("redistribute operand 1 R -> S(0) (a slice, free)"));
  EXPECT_THAT(mend({"ij->ij", "j"}, {{shard(1)}}), HasSubstr("redistribute operand 0 S(1) -> R"));
  EXPECT_THAT(mend(product, {{Shard{1, {2, 4}}}, {Shard{0, {3, 3}}}}),
              HasSubstr("redistribute operand 1 S(0; 3 3) -> S(0; 2 4) first"));
  EXPECT_THAT(mend(product, {{kR}, {shard(1)}}), HasSubstr("shard a dim that is there"));
}

TEST(Infer, TheFixesWork) {
  const OpType sum{"ij,j->ij", "", kSum};
  EXPECT_EQ(infer(sum, std::vector<Operand>{{kP}, {kP}}), kP);
  EXPECT_EQ(infer({"ij,j->ij", "", kProduct}, std::vector<Operand>{{shard(0)}, {kR}}), shard(0));
  EXPECT_EQ(infer({"ij,j->ij", "", kProduct}, std::vector<Operand>{{shard(1)}, {shard(0)}}), shard(1));
}

TEST(Infer, NamesTheAxisAndTheOperands) {
  const std::vector<Layout> operands{{{"dp", shard(0)}, {"tp", kP}}, {{"dp", kR}, {"tp", kR}}};
  const std::string message = message_of<LayoutError>([&] { infer({"ij,j->ij", "", kSum}, operands); });
  EXPECT_THAT(message, HasSubstr("[infer] op ij,j->ij: operand 1 (R) is added to operand 0 (P)"));
  EXPECT_THAT(message, HasSubstr("where: axis tp, operands P, R"));
}

TEST(Infer, WholeLayoutsOfTheTensorTechniques) {
  const OpType linear{"bsk,nk->bsn", "", kProduct};
  const auto out = [&](const Layout& x, const Layout& w) { return infer(linear, std::vector<Layout>{x, w}); };
  EXPECT_EQ(out({{"tp", kR}}, {{"tp", shard(0)}}), Layout({{"tp", shard(2)}}));       // 1D column
  EXPECT_EQ(out({{"tp", shard(2)}}, {{"tp", shard(1)}}), Layout({{"tp", kP}}));       // 1D row
  EXPECT_EQ(out({{"row", shard(0)}, {"col", kR}}, {{"col", shard(0)}, {"row", kR}}),  // 2D
            Layout({{"row", shard(0)}, {"col", shard(2)}}));
  EXPECT_EQ(out({{"a", shard(0)}, {"b", kR}, {"c", shard(2)}}, {{"b", shard(0)}, {"c", shard(1)}, {"a", kR}}),  // 3D
            Layout({{"a", shard(0)}, {"b", shard(2)}, {"c", kP}}));
}

/// Heads of queries, and fewer of keys, under one label.
TEST(Infer, UnevenPartsOfHeadsAreTheSameFractions) {
  const auto cut = [](std::vector<int64_t> sizes) { return Placement(Shard{.dim = 2, .sizes = std::move(sizes)}); };
  const OpType attention{"bsnw,btnw,btnw->bsnw", "tw", {{2}}};
  const auto out = [&](const Placement& q, const Placement& k, const Placement& v) {
    return infer(attention, std::vector<Operand>{{q}, {k}, {v}});
  };
  EXPECT_EQ(out(cut({6, 3}), cut({2, 1}), cut({2, 1})), cut({6, 3}));
  EXPECT_TRUE(is_refused([&] { out(cut({6, 3}), cut({1, 2}), cut({1, 2})); }));
  EXPECT_TRUE(is_refused([&] { out(cut({6, 3}), cut({2, 1}), shard(2)); }));
  EXPECT_TRUE(is_refused([&] { out(cut({6, 3}), cut({2, 1, 1}), cut({2, 1, 1})); }));
}

TEST(Infer, BlockedShardsFitOnlyIfTheyHaveTheSameBlocks) {
  const auto blocked = [](int dim, int blocks) { return Placement(Shard{.dim = dim, .blocks = blocks}); };
  const OpType linear{"bsk,nk->bsn", "", kProduct};
  const auto out = [&](const Placement& x, const Placement& w) {
    return infer(linear, std::vector<Operand>{{x}, {w}});
  };
  EXPECT_EQ(out(kR, blocked(0, 3)), blocked(2, 3));
  EXPECT_EQ(out(blocked(2, 3), blocked(1, 3)), kP);
  const std::string message = message_of<LayoutError>([&] { out(blocked(2, 3), shard(1)); });
  EXPECT_THAT(message, HasSubstr("'k' is split differently in operand 0 (S(2; blocks 3)) and operand 1 (S(1))"));
  EXPECT_THAT(message, HasSubstr("S(1; blocks 3)"));
  EXPECT_TRUE(is_refused([&] { out(blocked(2, 3), blocked(1, 2)); }));
  const std::string whole = message_of<LayoutError>([&] { out(blocked(2, 3), kR); });
  EXPECT_THAT(whole, HasSubstr("R -> S(1; blocks 3) (a slice, free)"));
}

TEST(Infer, KeepsTheOrderOfAxesOnADim) {
  const Layout minor_dp{{"tp", shard(0)}, {"dp", shard(0)}};
  const Layout minor_tp{{"dp", shard(0)}, {"tp", shard(0)}};
  const OpType transpose{"ij->ji", "", {{0}}};
  const Layout out = infer(transpose, std::vector<Layout>{minor_dp});
  EXPECT_EQ(out.sharding(1), (std::vector<std::string>{"tp", "dp"}));
  const std::string message = message_of<LayoutError>([&] {
    infer({"ij,ij->ij", "", kSum}, std::vector<Layout>{minor_dp, minor_tp});
  });
  EXPECT_THAT(message, HasSubstr("'i' is cut by axes tp, dp in that order in one operand, by dp, tp in operand 1"));
}

/// Attention with the keys sharded: the maximum is data, the sum of exponentials goes P -> R, values P.
TEST(Infer, OnlineSoftmaxNeedsNoFurtherPlacement) {
  const auto one = [](const OpType& op, std::vector<Operand> operands) { return infer(op, operands); };
  const Placement scores = one({"bqhe,bkhe->bqhk", "", kProduct}, {{kR}, {shard(1)}});
  const Placement exps = one({"bqhk,bqh->bqhk"}, {{scores}, {kR, true}});
  const Placement sum = one({"bqhk->bqh", "", {{0}}}, {{exps}});
  const Placement values = one({"bqhk,bkhd->bqhd", "", kProduct}, {{exps}, {shard(1)}});
  EXPECT_EQ(sum, kP);
  EXPECT_EQ(one({"bqhd,bqh->bqhd", "", {{0}}}, {{values}, {kR}}), kP);
  EXPECT_TRUE(is_refused([&] { one({"bqhd,bqh->bqhd", "", {{0}}}, {{values}, {sum}}); }));
}

TEST(Infer, RefusesInvalidLabels) {
  const auto fact = [](std::string_view labels, std::vector<Operand> operands) {
    return message_of<UsageError>([&] { infer(OpType{std::string(labels)}, operands); });
  };
  EXPECT_THAT(fact("ij", {{kR}}), HasSubstr("has no \"->\""));
  EXPECT_THAT(fact("ij,jk->ik", {{kR}}), HasSubstr("has 2 operands, 1 were given"));
  EXPECT_THAT(fact("ii->i", {{kR}}), HasSubstr("names 'i' twice"));
  EXPECT_THAT(fact("ij->ik", {{kR}}), HasSubstr("makes 'k' from nothing"));
  const std::vector<Layout> one_axis_less{{{"tp", kR}, {"dp", kR}}, {{"tp", kR}}};
  EXPECT_TRUE(is_refused([&] { infer(OpType{"ij,ij->ij"}, one_axis_less); }));
}

}  // namespace
}  // namespace caravan::testing::infer_test
