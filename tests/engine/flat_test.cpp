#include "caravan/engine/flat.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/engine/parameters.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FlatLayout, DecayedFirstEachInReverseOnAlignedOffsets) {
  Parameters parameters{{"a", {3, 5}, true}, {"b", {7}, false}, {"c", {33}, true}, {"d", {64}, true}, {"e", {}, false}};
  const FlatLayout layout(parameters.all());
  std::vector<std::string> names;
  std::vector<int64_t> offsets;
  for (const auto& slot : layout.slots()) {
    names.push_back(slot.parameter->name());
    offsets.push_back(slot.offset);
  }
  EXPECT_THAT(names, ElementsAre("d", "c", "a", "e", "b"));
  EXPECT_THAT(offsets, ElementsAre(0, 64, 128, 160, 192));
  EXPECT_EQ(layout.decayed_count(), 160);
  EXPECT_EQ(layout.count(), 224);
  EXPECT_EQ(layout.slot(parameters.at("a")).count, 15);
  EXPECT_EQ(layout.index(parameters.at("e")), 3U);
}

TEST(FlatLayout, LeavesOutWhatRequiresNoGradient) {
  Parameters parameters{{"a", {3}, true}, {"frozen", {3}, true}};
  parameters.at("frozen").set_requires_grad(false);
  const FlatLayout layout(parameters.all());
  EXPECT_TRUE(layout.has(parameters.at("a")));
  EXPECT_FALSE(layout.has(parameters.at("frozen")));
  EXPECT_EQ(layout.count(), FlatLayout::kAlignment);
}

TEST(Flatten, EveryHandleSeesTheNewMemory) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters parameters{{"a", {3, 5}, true}, {"b", {7}, false}};
    const at::Tensor handle = parameters.at("a").rest();  // a user's module holds such
    const at::Tensor before = handle.detach().clone();
    const FlatState state = flatten(parameters.all(), mesh.world());
    EXPECT_TRUE(at::equal(handle, before));
    EXPECT_EQ(handle.data_ptr(), state.values.data_ptr());
    EXPECT_TRUE(handle.is_leaf() && handle.requires_grad());
    EXPECT_TRUE(parameters.at("a").compute().is_same(handle));
    state.values.fill_(4);
    EXPECT_TRUE(at::equal(parameters.at("b").compute(), at::full({7}, 4.0F)));
    (handle * 2).sum().backward();
    EXPECT_TRUE(at::equal(handle.grad(), at::full({3, 5}, 2.0F)));
  });
}

TEST(Flatten, EveryTensorStandsOn64BytesAndGapsAreZero) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters parameters{{"a", {3, 5}, true}, {"b", {7}, false}, {"c", {1}, true}, {"d", {100}, false}};
    const FlatState state = flatten(parameters.all(), mesh.world());
    const at::Tensor half = state.values.to(at::kBFloat16);
    at::Tensor gaps = state.values.clone();
    for (const Parameter* parameter : parameters.all()) {
      EXPECT_EQ(parameter->rest().sizes(), at::IntArrayRef(parameter->global_shape()));
      for (const at::Tensor& flat : {state.values, state.gradients, half}) {
        const auto address = reinterpret_cast<uintptr_t>(state.layout.view(flat, *parameter).data_ptr());
        EXPECT_EQ(address % 64, 0U) << parameter->name() << " in " << c10::toString(flat.scalar_type());
      }
      state.layout.view(gaps, *parameter).zero_();
    }
    EXPECT_EQ(gaps.abs().max().item<double>(), 0);
    EXPECT_EQ(state.gradients.abs().max().item<double>(), 0);
  });
}

TEST(Flatten, RefusesWhatHasNoFlatForm) {
  on_mesh({}, [](const Mesh& mesh) {
    Parameters mixed{{"a", {3}, true}, {"b", {3}, true}};
    mixed.at("a").set_rest(at::zeros({3}, at::kDouble).requires_grad_(), {});
    EXPECT_THAT(message_of<UsageError>([&] { flatten(mixed.all(), mesh.world()); }),
                HasSubstr("a: rests as Double on cpu, but b as Float on cpu"));
    Parameters frozen{{"a", {3}, true}};
    frozen.at("a").set_requires_grad(false);
    EXPECT_THAT(message_of<UsageError>([&] { flatten(frozen.all(), mesh.world()); }),
                HasSubstr("no parameter requires a gradient"));
  });
}

}  // namespace
}  // namespace caravan::testing
