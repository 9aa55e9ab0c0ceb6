/// How the buckets of a strategy are filled and reduced. Each is compared with the law for every tensor, bit for bit,
/// since sums over ranks are taken in rank order everywhere; and with sums of integers that the test takes, which are
/// exact in any order.

#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "caravan/engine/flat/unsharded.h"
#include "caravan/engine/gradients/gradient_sums.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::payment_test {
namespace {

/// The parts that an engine makes of a strategy, without the passes.
struct Parts {
  Parts(Strategy strategy_, const Mesh& mesh, const std::map<std::string, at::Tensor>& values)
      : strategy(std::move(strategy_)), state{.layout = FlatLayout(strategy, mesh)}, pool(mesh.world(), false) {
    state.allocate(strategy, mesh, at::kFloat, at::kCPU);
    for (const Slot& slot : state.layout.slots()) {
      const std::string& name = slot.parameter->name();
      state.layout.view(state.values, *slot.parameter)
          .copy_(piece_of(values.at(name), strategy.layouts.at(name).sharded, mesh));
    }
    leaves = std::make_unique<UnshardedParameters>(state, strategy, pool, transfers);
    sums = std::make_unique<GradientSums>(state, strategy, pool, transfers);
    leaves->refresh();
  }

  Strategy strategy;
  FlatState state;
  BufferPool pool;
  TransferQueue transfers;
  std::unique_ptr<UnshardedParameters> leaves;
  std::unique_ptr<GradientSums> sums;
};

struct Case {
  std::string name;
  Axes axes;
  std::function<void(Strategy& strategy, Mesh& mesh)> lay_out;
  bool has_stages = false;  ///< the first and the last unit share a parameter; no scalars, which belong to no stage
  at::ScalarType compute_dtype = at::kFloat;
};

void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

/// Odd rows, fewer rows than ranks, many small ones, a long row, nothing at all, a scalar.
struct FakeModel {
  Chain chain{{}};
  explicit FakeModel(const Case& which) {
    Parameters& first = chain.add({{"odd", {7, 4}}, {"wide", {2, 100}}, {"bias", {6}, false}});
    chain.add({{"many0", {1, 4}}, {"many1", {2, 4}}, {"many2", {1, 4}}, {"many3", {3, 4}}, {"empty", {0, 4}}});
    if (which.has_stages) {
      chain.add({{"cube", {5, 2, 4}}});
      chain.add({{"w", {9, 4}}, {.name = "", .shape = {}, .shared = &first.at("odd")}});
    } else {
      chain.add({{"cube", {5, 2, 4}}, {"scalar", {}, false}});
      chain.add({{"w", {9, 4}}});
    }
  }
};

uint64_t seed_of(const std::string& name) { return std::hash<std::string>()(name) % 10007; }

at::Tensor values_of(at::IntArrayRef shape, uint64_t seed, bool integers) {
  const at::Tensor x = random_tensor(shape, seed);
  return (integers ? (x * 64).round() : x).to(at::kFloat);
}

bool uses(const Parts& parts, int group, const Mesh& mesh) {
  if (parts.strategy.pipeline_axis.empty()) return true;
  for (const Units::Unit& unit : parts.state.layout.units().units) {
    const bool reads = std::find(unit.groups.begin(), unit.groups.end(), group) != unit.groups.end();
    if (reads && unit.stage == mesh[parts.strategy.pipeline_axis].coord()) return true;
  }
  return false;
}

/// Ranks that differ only on axes where the unsharded parameter is invariant have the same number: they compute the
/// same gradient.
uint64_t number_of(const Layout& leaf, const Mesh& mesh) {
  uint64_t number = 1;
  for (const auto& [axis, placement] : leaf.entries()) {
    if (!placement.is_invariant()) number = number * 10 + static_cast<uint64_t>(mesh[axis].coord());
  }
  return number;
}

/// This rank's box of an unsharded parameter. It is not split on an axis that is part of another.
Box box_of_leaf(const Parameter& parameter, const Layout& leaf, const Mesh& mesh) {
  std::vector<Layout::Entry> shards;
  for (const auto& entry : leaf.entries()) {
    if (entry.second.is_shard()) shards.push_back(entry);
  }
  return local_box(parameter.global_shape(), Layout(std::move(shards)), mesh);
}

bool counts_here(const Layout& leaf, const Mesh& mesh) {
  for (const auto& [axis, placement] : leaf.entries()) {
    if (placement.is_invariant() && mesh[axis].coord() != 0) return false;
  }
  return true;
}

/// The layouts of a parameter on the same axes: where the unsharded layout names part of an axis, so does the sharded
/// one.
ParameterLayouts on_the_same_axes(const ParameterLayouts& layouts, const Mesh& mesh) {
  ParameterLayouts result{.sharded = {}, .unsharded = layouts.unsharded};
  std::vector<Layout::Entry> rest = layouts.sharded.entries();
  for (auto& [axis, placement] : rest) {
    for (const auto& [of_leaf, whole] : layouts.unsharded.entries()) {
      if (layouts.unsharded.has(axis) || mesh[of_leaf].parent() != axis) continue;
      placement = Shard{.dim = 0, .owner = 0, .rows = placement.owner_rows()};  // its first user has it
      axis = of_leaf;
    }
  }
  result.sharded = Layout(std::move(rest));
  return result;
}

/// A rank's summand of a gradient, or its part of the sum; and which box of the whole it is.
struct Part {
  at::Tensor tensor;
  Box box;
};

/// What one rank had and found, by parameter.
struct Found {
  std::map<std::string, Part> summands;  ///< none where another rank has the same
  std::map<std::string, Part> sums;
};

/// Each unsharded gradient of a group must have the same bits as the law's.
void compare_leaves(const Parts& parts, int group, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  for (const Slot& slot : parts.state.layout.slots()) {
    if (parts.state.layout.buckets()[static_cast<size_t>(slot.bucket)].group != group) continue;
    const Parameter& parameter = *slot.parameter;
    const auto [rest, leaf] = on_the_same_axes(parts.strategy.layouts.at(parameter.name()), mesh);
    const at::Tensor sharded = parts.state.layout.view(parts.state.values, parameter).to(parts.strategy.compute_dtype);
    EXPECT_TRUE(same_bits(parameter.unsharded(), redistribute(sharded, rest, leaf, mesh))) << parameter.name();
  }
}

/// Accumulates a gradient for each parameter of a group. Returns what the law makes of them.
std::map<const Parameter*, at::Tensor> accumulate_grad(Parts& parts, int group, const Mesh& mesh, bool integers,
                                                       Found& found) {
  const at::NoGradGuard no_grad;
  std::map<const Parameter*, at::Tensor> paid;
  for (const Slot& slot : parts.state.layout.slots()) {
    if (parts.state.layout.buckets()[static_cast<size_t>(slot.bucket)].group != group) continue;
    Parameter& parameter = *slot.parameter;
    const std::string& name = parameter.name();
    const auto [rest, leaf] = on_the_same_axes(parts.strategy.layouts.at(name), mesh);
    const at::Tensor summand = values_of(slot.unsharded_shape, seed_of(name) + 97 * number_of(leaf, mesh), integers);
    const GradientSink::Sum sum = parts.sums->sum_of(parameter);
    EXPECT_TRUE(sum.is_empty);
    sum.tensor.copy_(summand);
    parts.sums->accumulated(parameter);
    paid[&parameter] = redistribute(summand, leaf.dual(), rest, mesh);
    if (counts_here(leaf, mesh)) found.summands[name] = {summand, box_of_leaf(parameter, leaf, mesh)};
  }
  return paid;
}

/// Fills, accumulates and reduces every group, as a step does: all are in flight together.
Found pay(const Case& which, const Mesh& given, bool integers) {
  FakeModel model(which);
  Mesh mesh = given;
  Strategy strategy = whole_model(model.chain, mesh);
  strategy.compute_dtype = which.compute_dtype;
  which.lay_out(strategy, mesh);
  std::map<std::string, at::Tensor> whole;
  for (const Parameter* parameter : model.chain.parameters()) {
    whole[parameter->name()] = values_of(parameter->global_shape(), seed_of(parameter->name()), integers);
  }
  Parts parts(strategy, mesh, whole);
  std::vector<int> groups;
  for (int group = 0; group < static_cast<int>(parts.state.layout.units().groups.size()); ++group) {
    if (uses(parts, group, mesh)) groups.push_back(group);
  }
  for (const int group : groups) parts.leaves->gather(group);
  for (const int group : groups) parts.leaves->wait(group);
  for (const int group : groups) compare_leaves(parts, group, mesh);
  Found found;
  std::map<const Parameter*, at::Tensor> paid;
  parts.sums->begin_step();
  for (const int group : groups) paid.merge(accumulate_grad(parts, group, mesh, integers, found));
  std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) {  // in the order of backward; those shared by
                                                                      // stages last
    const auto& units = parts.state.layout.units();
    const auto is_joint = [&](int group) { return units.groups[static_cast<size_t>(group)].is_joint; };
    return is_joint(a) != is_joint(b) ? is_joint(b) : a > b;
  });
  for (const int group : groups) parts.sums->reduce(group);
  parts.sums->finish();
  at::Tensor gaps = parts.state.gradients.to_tensor();
  for (const auto& [parameter, tensor] : paid) {
    const at::Tensor got = parts.state.layout.view(parts.state.gradients, *parameter);
    EXPECT_TRUE(same_bits(got, tensor)) << "gradient of " << parameter->name() << ", " << mesh.where();
    parts.state.layout.view(gaps, *parameter).zero_();
    const Layout& rest = strategy.layouts.at(parameter->name()).sharded;
    found.sums[parameter->name()] = {got.clone(), local_box(parameter->global_shape(), rest, mesh)};
  }
  EXPECT_TRUE(gaps.numel() == 0 || gaps.abs().max().item<double>() == 0) << "gaps are zero, " << mesh.where();
  return found;
}

at::Tensor view_of(const at::Tensor& whole, const Box& box) {
  at::Tensor piece = whole;
  for (size_t dim = 0; dim < box.size.size(); ++dim) {
    piece = piece.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
  }
  return piece;
}

// ---- the strategies ----

using LayOut = std::function<void(Strategy& strategy, Mesh& mesh)>;

LayOut data_over(const std::string& axis) {
  return [axis](Strategy& strategy, Mesh& mesh) { add_data_axis(strategy, mesh, axis); };
}

LayOut rows_over(const std::string& axis) {
  return [axis](Strategy& strategy, Mesh& mesh) {
    add_data_axis(strategy, mesh, axis);
    shard_at_rows(strategy, mesh, axis);
  };
}

/// Like parameter servers; those of one bucket have the same owner.
void on_owners(Strategy& strategy, Mesh& mesh) {
  add_data_axis(strategy, mesh, "dp");
  int next = 0;
  for (const Strategy::Unit& unit : strategy.units) {
    for (const Parameter* parameter : unit.module->parameters()) {
      if (parameter->global_shape().empty()) continue;
      const Shard owned{.dim = 0, .owner = next++ % 3, .rows = parameter->global_shape()[0]};
      strategy.layouts.at(parameter->name()).sharded = {{"dp", owned}};
    }
  }
}

void some_hold_nothing(Strategy& strategy, Mesh& mesh) {
  add_data_axis(strategy, mesh, "dp");
  strategy.layouts.at("u2.cube").sharded = {{"dp", Shard{0, {0, 3, 0, 2}}}};
  strategy.layouts.at("u3.w").sharded = {{"dp", Shard{0, {9, 0, 0, 0}}}};
}

void hybrid(Strategy& strategy, Mesh& mesh) {
  add_data_axis(strategy, mesh, "replicate");
  add_data_axis(strategy, mesh, "shard");
  shard_at_rows(strategy, mesh, "shard");
}

/// Layouts as made by a tensor plan: split by columns or rows, or used in different ways.
void beside_a_tensor_axis(Strategy& strategy, Mesh& mesh) {
  const std::map<std::string, int> split{{"u0.wide", 0}, {"u1.many3", 1}, {"u2.cube", 2}};
  for (const auto& [name, dim] : split) {
    ParameterLayouts& layouts = strategy.layouts.at(name);
    layouts.sharded = layouts.unsharded = layouts.sharded.moved("tp", Shard{dim});
  }
  for (const char* name : {"u0.bias", "u3.w"}) {
    Layout& leaf = strategy.layouts.at(name).unsharded;
    leaf = leaf.moved("tp", Replicate{});
  }
  add_data_axis(strategy, mesh, "dp");
}

/// Unit 0 and unit 3 share a parameter: its gradient is summed over their stages, and the first of them owns it.
LayOut stages(const std::vector<int>& stage_of_unit) {
  return [stage_of_unit](Strategy& strategy, Mesh& mesh) { add_stages(strategy, mesh, "pp", stage_of_unit); };
}

LayOut both(const LayOut& first, const LayOut& second) {
  return [first, second](Strategy& strategy, Mesh& mesh) {
    first(strategy, mesh);
    second(strategy, mesh);
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int n : {1, 2, 3, 4}) {
    all.push_back({"invariant_" + std::to_string(n), {{"dp", n}}, data_over("dp")});
    all.push_back({"rows_" + std::to_string(n), {{"dp", n}}, rows_over("dp")});
  }
  all.push_back({"rows_with_bf16_leaves", {{"dp", 3}}, rows_over("dp"), false, at::kBFloat16});
  all.push_back({"owners", {{"dp", 3}}, on_owners});
  all.push_back({"some_hold_nothing", {{"dp", 4}}, some_hold_nothing});
  all.push_back({"hybrid", {{"replicate", 2}, {"shard", 2}}, hybrid});
  all.push_back({"hybrid_transposed", {{"shard", 2}, {"replicate", 2}}, hybrid});
  all.push_back({"rows_over_two_axes", {{"a", 2}, {"b", 2}}, both(rows_over("a"), rows_over("b"))});
  const LayOut tensor = beside_a_tensor_axis;
  all.push_back({"tensor_and_invariant", {{"dp", 2}, {"tp", 2}}, tensor});
  all.push_back({"invariant_and_tensor", {{"tp", 2}, {"dp", 2}}, tensor});
  all.push_back({"tensor_and_rows", {{"dp", 2}, {"tp", 2}}, both(tensor, [](Strategy& strategy, Mesh& mesh) {
                   shard_at_rows(strategy, mesh, "dp");
                 })});
  all.push_back({"two_stages", {{"pp", 2}}, stages({0, 0, 1, 1}), true});
  all.push_back({"four_stages", {{"pp", 4}}, stages({0, 1, 2, 3}), true});
  all.push_back({"three_stages", {{"pp", 3}}, stages({0, 1, 1, 2}), true});
  all.push_back({"stages_and_invariant", {{"dp", 2}, {"pp", 2}}, both(stages({0, 0, 1, 1}), data_over("dp")), true});
  all.push_back({"stages_and_rows", {{"pp", 2}, {"dp", 2}}, both(stages({0, 0, 1, 1}), rows_over("dp")), true});
  all.push_back({"rows_and_stages", {{"dp", 2}, {"pp", 2}}, both(stages({0, 0, 1, 1}), rows_over("dp")), true});
  return all;
}

class GradientReduction : public ::testing::TestWithParam<Case> {};

TEST_P(GradientReduction, FollowsTheLawForEachTensor) {
  on_mesh(GetParam().axes, [&](const Mesh& mesh) { pay(GetParam(), mesh, /*integers=*/false); });
}

TEST_P(GradientReduction, IsTheExpectedSum) {
  std::vector<Found> ranks(static_cast<size_t>(num_ranks(GetParam().axes)));
  on_mesh(GetParam().axes, [&](const Mesh& mesh) {
    ranks[static_cast<size_t>(mesh.rank())] = pay(GetParam(), mesh, /*integers=*/true);
  });
  FakeModel model(GetParam());
  for (const Parameter* parameter : model.chain.parameters()) {
    if (!parameter->requires_grad()) continue;
    const at::Tensor sum = at::zeros(parameter->global_shape());
    const at::Tensor held = at::zeros(parameter->global_shape());
    for (const Found& rank : ranks) {
      const auto found = rank.summands.find(parameter->name());
      if (found != rank.summands.end()) view_of(sum, found->second.box).add_(found->second.tensor);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto found = ranks[rank].sums.find(parameter->name());
      if (found == ranks[rank].sums.end()) continue;
      view_of(held, found->second.box).fill_(1);
      EXPECT_TRUE(at::equal(found->second.tensor, view_of(sum, found->second.box)))
          << parameter->name() << " on rank " << rank;
    }
    EXPECT_TRUE(at::equal(held, at::ones_like(held))) << parameter->name() << ": every element is somewhere";
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, GradientReduction, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::testing::payment_test
