#include "caravan/engine/flat/flat.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::flat_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Mesh record_mesh(int rank, const Axes& axes) { return Mesh::create(make_record_world(rank, num_ranks(axes)), axes); }
Mesh lone_mesh() { return record_mesh(0, {}); }

FlatLayout whole_layout(Module& model, const Mesh& mesh) { return {whole_model(model, mesh), mesh}; }

std::vector<std::string> names_of(const FlatLayout& layout) {
  std::vector<std::string> names;
  for (const Slot& slot : layout.slots()) names.push_back(slot.parameter->name());
  return names;
}

TEST(FlatLayout, OrdersAGroupDecayedFirstInReverseAtAlignedOffsets) {
  Parameters model{{"a", {3, 5}, true}, {"b", {7}, false}, {"c", {33}, true}, {"d", {64}, true}, {"e", {}, false}};
  const FlatLayout layout = whole_layout(model, lone_mesh());
  std::vector<int64_t> offsets;
  for (const Slot& slot : layout.slots()) offsets.push_back(slot.sharded_offset);
  EXPECT_THAT(names_of(layout), ElementsAre("d", "c", "a", "e", "b"));
  EXPECT_THAT(offsets, ElementsAre(0, 64, 128, 160, 192));
  EXPECT_EQ(layout.count(), 224);
  EXPECT_EQ(layout.slot(model.at("a")).sharded_count(), 15);
  EXPECT_EQ(layout.index(model.at("e")), 3U);
  ASSERT_EQ(layout.ranges().size(), 2U);  // what the optimizer treats alike is one range, gaps included
  for (const auto& [range, offset, count, decays] : {std::tuple(0, 0, 160, true), std::tuple(1, 160, 64, false)}) {
    const FlatLayout::Range& found = layout.ranges()[static_cast<size_t>(range)];
    EXPECT_EQ(found.offset, offset);
    EXPECT_EQ(found.count, count);
    EXPECT_EQ(found.decays, decays);
  }
}

/// About the order in which backward completes gradients, so that neighbours go out together.
TEST(FlatLayout, GroupsAreInReverseAndSharedOnesLast) {
  Chain model({{{"w", {40}}, {"bias", {2}, false}}, {{"w", {40}}}});
  model.add({{"w", {40}}, {.name = "", .shape = {}, .shared = &model.unit(0).at("w")}});
  const FlatLayout layout = whole_layout(model, lone_mesh());
  EXPECT_THAT(names_of(layout), ElementsAre("u2.w", "u1.w", "u0.bias", "u0.w"));
  std::vector<int> groups;
  for (const Bucket& bucket : layout.buckets()) groups.push_back(bucket.group);
  EXPECT_THAT(groups, ElementsAre(2, 1, 0, 3));
  EXPECT_EQ(layout.units().groups[3].name, "u0.w");
  EXPECT_THAT(layout.units().units[0].groups, ElementsAre(0, 3));
  EXPECT_THAT(layout.units().units[1].groups, ElementsAre(1));
  EXPECT_THAT(layout.units().units[2].groups, ElementsAre(2, 3));
}

TEST(FlatLayout, FrozenParametersComeLastWithoutGradients) {
  Chain model({{{"a", {3}}, {"frozen", {3}}}, {{"frozen", {5}}}, {{"c", {3}}}});
  model.unit(0).at("frozen").set_requires_grad(false);
  model.unit(1).at("frozen").set_requires_grad(false);
  const FlatLayout layout = whole_layout(model, lone_mesh());
  EXPECT_THAT(names_of(layout), ElementsAre("u2.c", "u0.a", "u1.frozen", "u0.frozen"));
  EXPECT_EQ(layout.trained_count(), 2 * FlatLayout::kAlignment);
  EXPECT_EQ(layout.count(), 4 * FlatLayout::kAlignment);
  EXPECT_EQ(layout.ranges().back().offset + layout.ranges().back().count, layout.trained_count());
  EXPECT_FALSE(layout.units().groups[1].is_trained);
  EXPECT_TRUE(layout.units().units[1].has_backward) << "a unit before it is trained";
}

TEST(FlatLayout, BackwardEndsAtTheFirstUnitThatIsTrained) {
  Chain model({{{"w", {3}}}, {{"w", {3}}}});
  model.unit(0).at("w").set_requires_grad(false);
  const FlatLayout layout = whole_layout(model, lone_mesh());
  EXPECT_FALSE(layout.units().units[0].has_backward);
  EXPECT_TRUE(layout.units().units[1].has_backward);
}

// ---- shards cut at rows ----

const std::vector<std::vector<Parameters::Spec>> kUnits{
    {{"odd", {7, 3}}, {"wide", {2, 100}}, {"bias", {5}, false}, {"scalar", {}, false}},
    {{"many0", {1, 4}}, {"many1", {1, 4}}, {"many2", {1, 4}}, {"many3", {3, 4}}, {"empty", {0, 4}}}};

Strategy sharded(Module& model, Mesh& mesh) {
  Strategy strategy = whole_model(model, mesh);
  add_data_axis(strategy, mesh, "dp");
  shard_at_rows(strategy, mesh, "dp");
  return strategy;
}

TEST(ShardAtRows, EveryRankAgreesHoldsContiguousRowsAndAboutAsMuch) {
  for (const int n : {1, 2, 3, 4}) {
    std::vector<int64_t> rests(static_cast<size_t>(n));
    std::map<std::string, std::string> first;
    for (int rank = 0; rank < n; ++rank) {
      Chain model(kUnits);
      Mesh mesh = record_mesh(rank, {{"dp", n}});
      const Strategy strategy = sharded(model, mesh);
      const FlatLayout layout(strategy, mesh);
      for (const auto& [name, layouts] : strategy.layouts) {
        const auto [entry, is_new] = first.emplace(name, layouts.sharded.to_string());
        EXPECT_EQ(entry->second, layouts.sharded.to_string()) << name;
        EXPECT_TRUE(layouts.unsharded["dp"].is_replicate());
        if (n == 1) continue;  // all placements are one
        EXPECT_EQ(layouts.sharded["dp"].is_shard(), name != "u0.scalar");
      }
      for (const Bucket& bucket : layout.buckets()) {
        const bool is_cut = n > 1 && layout.slots()[bucket.first_slot].parameter->name() != "u0.scalar";
        ASSERT_EQ(bucket.fill.size(), is_cut ? 1U : 0U);
        EXPECT_EQ(bucket.reduces_in_place(), !is_cut);
        if (!is_cut) continue;
        const FlatCell& fill = bucket.fill[0];
        EXPECT_EQ(fill.whole(), bucket.unsharded_count);
        EXPECT_EQ(fill.own(), bucket.sharded_count);
        EXPECT_EQ(bucket.reduce[0].counts, fill.counts);
        // A cut goes to the nearest row or to the end of a gap: half of the longest row (100) and a gap.
        for (const int64_t count : fill.counts) {
          EXPECT_NEAR(static_cast<double>(count), static_cast<double>(bucket.unsharded_count) / n, 100 + 32);
        }
      }
      rests[static_cast<size_t>(rank)] = layout.count();
    }
    EXPECT_LE(*std::max_element(rests.begin(), rests.end()) - *std::min_element(rests.begin(), rests.end()), 2 * 132);
  }
}

TEST(ShardAtRows, EveryElementIsStoredOnceAndAScalarOnEveryRank) {
  const int n = 3;
  std::map<std::string, int64_t> held;
  for (int rank = 0; rank < n; ++rank) {
    Chain model(kUnits);
    Mesh mesh = record_mesh(rank, {{"dp", n}});
    const FlatLayout layout(sharded(model, mesh), mesh);
    for (const Slot& slot : layout.slots()) held[slot.parameter->name()] += slot.sharded_count();
  }
  EXPECT_EQ(held.at("u0.odd"), 21);
  EXPECT_EQ(held.at("u0.wide"), 200);
  EXPECT_EQ(held.at("u1.many3"), 12);
  EXPECT_EQ(held.at("u1.empty"), 0);
  EXPECT_EQ(held.at("u0.scalar"), n);
}

TEST(FlatLayout, ShardsThatAreNotOnePartForEachCoordinateAreRefused) {
  const auto refusal = [](const Placement& a, const Placement& b) {
    return message_of<LayoutError>([&] {
      Parameters model{{"a", {4, 4}}, {"b", {4, 4}}};
      Mesh mesh = record_mesh(0, {{"dp", 2}});
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      strategy.layouts.at("a").sharded = {{"dp", a}};
      strategy.layouts.at("b").sharded = {{"dp", b}};
      const FlatLayout layout(strategy, mesh);
    });
  };
  const auto rows = [](int64_t first) { return Placement(Shard{0, {first, 4 - first}}); };
  EXPECT_EQ(refusal(rows(4), rows(4)), "");
  EXPECT_EQ(refusal(rows(0), rows(4)), "") << "b lies in front of a";
  EXPECT_THAT(refusal(rows(4), rows(0)),
              AllOf(HasSubstr("a: is sharded S(0; 4 0) on axis dp"), HasSubstr("shard_at_rows")));
  EXPECT_THAT(refusal(rows(2), rows(2)), HasSubstr("a: is sharded S(0; 2 2) on axis dp"));
  EXPECT_THAT(refusal(Shard{1}, Shard{1}), HasSubstr("b: is sharded S(1) on axis dp"));
}

TEST(FlatLayout, ShardedParametersAreIOrS) {
  for (const Placement& owed : {Placement(Partial{}), Placement(Replicate{})}) {
    Parameters model{{"w", {4}}};
    const Mesh mesh = record_mesh(0, {{"a", 2}});
    Strategy strategy = whole_model(model, mesh);
    strategy.layouts.at("w") = {{{"a", owed}}, {{"a", owed}}};
    EXPECT_THAT(message_of<LayoutError>([&] { FlatLayout(strategy, mesh); }),
                HasSubstr("w: is " + owed.to_string() + " on axis a"));
  }
}

// ---- the memory that an engine makes by a layout ----

TEST(FlatState, EveryHandleSeesTheNewMemory) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters model{{"a", {3, 5}, true}, {"b", {7}, false}};
    model.materialise(mesh, {}, {.seed = 3});
    const at::Tensor handle = model.at("a").sharded();  // a user's module holds such
    const at::Tensor before = handle.detach().clone();
    Engine engine(model, mesh, whole_model(model, mesh));
    FlatState& state = engine.state();
    EXPECT_TRUE(at::equal(handle, before));
    EXPECT_EQ(handle.data_ptr(), state.values.pieces().front().memory.data_ptr());
    EXPECT_TRUE(handle.is_leaf() && handle.requires_grad());
    EXPECT_TRUE(model.at("a").compute().is_same(handle));
    state.values.narrow(0, state.layout.count()).fill_(4);
    EXPECT_TRUE(at::equal(model.at("b").compute(), at::full({7}, 4.0F)));
    EXPECT_THAT(engine.parameters(), ::testing::SizeIs(2));
  });
}

TEST(FlatState, WithoutMemoryBeforeMatchesMaterialise) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters made{{"a", {3, 5}}};
    made.materialise(mesh, {}, {.seed = 3});
    Parameters model{{"a", {3, 5}}};
    const Engine engine(model, mesh, whole_model(model, mesh), {.seed = 3});
    EXPECT_TRUE(same_bits(model.at("a").sharded(), made.at("a").sharded()));
    EXPECT_TRUE(model.at("a").unsharded().is_leaf() && model.at("a").unsharded().requires_grad());
    Parameters wide{{"a", {3, 5}}};
    const Engine in_fp64(wide, mesh, whole_model(wide, mesh), {.seed = 3, .dtype = at::kDouble});
    EXPECT_EQ(wide.at("a").sharded().scalar_type(), at::kDouble);
    EXPECT_TRUE(is_close(wide.at("a").sharded(), made.at("a").sharded(), 1e-6)) << "the same values, in fp32 digits";
    Parameters empty{{"a", {3, 5}}};
    const Engine to_be_loaded(empty, mesh, whole_model(empty, mesh), {.initialise = false});
    EXPECT_EQ(empty.at("a").sharded().abs().max().item<double>(), 0);
  });
}

TEST(FlatState, TensorsAreAlignedTo64BytesAndGapsAreZero) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    Parameters model{{"a", {3, 5}, true}, {"b", {7}, false}, {"c", {1}, true}, {"d", {100}, false}};
    const Engine engine(model, mesh, whole_model(model, mesh));
    const FlatState& state = engine.state();
    const at::Tensor values = state.values.narrow(0, state.layout.count());
    const at::Tensor gradients = state.gradients.narrow(0, state.layout.trained_count());
    const at::Tensor half = values.to(at::kBFloat16);
    at::Tensor gaps = values.clone();
    for (const Parameter* parameter : model.parameters()) {
      EXPECT_EQ(parameter->sharded().sizes(), at::IntArrayRef(parameter->global_shape()));
      for (const at::Tensor& flat : {values, gradients, half}) {
        const auto address = reinterpret_cast<uintptr_t>(state.layout.view(flat, *parameter).data_ptr());
        EXPECT_EQ(address % 64, 0U) << parameter->name() << " in " << c10::toString(flat.scalar_type());
      }
      state.layout.view(gaps, *parameter).zero_();
    }
    EXPECT_EQ(gaps.abs().max().item<double>(), 0);
    EXPECT_EQ(gradients.abs().max().item<double>(), 0);
  });
}

TEST(FlatState, OnMetaIsShapesOnly) {
  Chain model(kUnits);
  Mesh mesh = record_mesh(5, {{"dp", 8}});
  const Engine engine(model, mesh, sharded(model, mesh), {.device = at::kMeta});
  EXPECT_TRUE(engine.state().values.is_meta());
  EXPECT_EQ(engine.state().values.to_tensor().numel(), engine.state().layout.count());
  EXPECT_EQ(model.unit(0).at("odd").unsharded().sizes(), at::IntArrayRef({7, 3}));
  EXPECT_LE(model.unit(0).at("odd").sharded().size(0), 2);
}

TEST(FlatState, RefusesWhatHasNoFlatForm) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters mixed{{"a", {3}, true}, {"b", {3}, true}};
    mixed.materialise(mesh, {}, {});
    mixed.at("a").set_sharded(at::zeros({3}, at::kDouble).requires_grad_(), {});
    EXPECT_THAT(message_of<UsageError>([&] { Engine(mixed, mesh, whole_model(mixed, mesh)); }),
                HasSubstr("a: is Double on cpu, but b is Float on cpu"));
    Parameters frozen{{"a", {3}, true}};
    frozen.at("a").set_requires_grad(false);
    Engine evaluates(frozen, mesh, whole_model(frozen, mesh));
    EXPECT_THAT(message_of<UsageError>([&] { evaluates.begin_step(); }), HasSubstr("no parameter requires a gradient"));
    Parameters model{{"a", {3}, true}};
    Strategy without = whole_model(model, mesh);
    without.layouts.clear();
    EXPECT_THAT(message_of<LayoutError>([&] { Engine(model, mesh, without); }), HasSubstr("a: has no layout"));
    Strategy none = whole_model(model, mesh);
    none.units.clear();
    EXPECT_THAT(message_of<UsageError>([&] { Engine(model, mesh, none); }), HasSubstr("a: belongs to no unit"));
  });
}

}  // namespace
}  // namespace caravan::testing::flat_test
