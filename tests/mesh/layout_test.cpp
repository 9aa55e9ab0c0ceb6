#include "caravan/mesh/layout.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::layout_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kS0 = Shard{0};
const Placement kS1 = Shard{1};

TEST(Layout, TextAndLookup) {
  const Layout layout{{"dp", kI}, {"tp", kS0}};
  EXPECT_EQ(layout.to_string(), "dp=I tp=S(0)");
  EXPECT_EQ(layout["tp"], kS0);
  EXPECT_TRUE(layout.has("dp"));
  EXPECT_FALSE(layout.has("pp"));
  EXPECT_TRUE(Layout{}.empty());
  EXPECT_THAT(refusal<LayoutError>([&] { layout["pp"]; }),
              HasSubstr("[layout] dp=I tp=S(0): has no placement for axis pp"));
  EXPECT_THAT(refusal<LayoutError>([] { Layout({{"dp", kI}, {"dp", kR}}); }), HasSubstr("axis dp is placed twice"));
}

TEST(Layout, OrderIsMajorFirst) {
  const Layout layout{{"tp", kS0}, {"pp", kS1}, {"dp", kS0}};
  EXPECT_THAT(layout.sharding(0), ElementsAre("tp", "dp"));
  EXPECT_THAT(layout.sharding(1), ElementsAre("pp"));
  EXPECT_TRUE(layout.sharding(2).empty());
}

TEST(Layout, AnArrivingAxisBecomesTheMinorOne) {
  const Layout layout{{"dp", kI}, {"tp", kS0}};
  EXPECT_EQ(layout.moved("dp", kR).to_string(), "dp=R tp=S(0)");
  EXPECT_EQ(layout.moved("dp", kS1).to_string(), "dp=S(1) tp=S(0)");
  EXPECT_EQ(layout.moved("dp", kS0).to_string(), "tp=S(0) dp=S(0)");
  EXPECT_EQ(layout.moved("tp", kS0).to_string(), "dp=I tp=S(0)");
  EXPECT_THAT(layout.moved("dp", kS0).moved("tp", kS1).sharding(0), ElementsAre("dp"));
  EXPECT_THAT(refusal<LayoutError>([&] { layout.moved("pp", kR); }), HasSubstr("has no placement for axis pp"));
}

TEST(Layout, EqualityIsOfMeaning) {
  const Layout layout{{"dp", kI}, {"tp", kS0}};
  EXPECT_EQ(layout, (Layout{{"tp", kS0}, {"dp", kI}}));
  EXPECT_NE(layout, (Layout{{"tp", kS0}, {"dp", kR}}));
  EXPECT_NE(layout, (Layout{{"tp", kS0}}));
  EXPECT_NE(layout, (Layout{{"tp", kS0}, {"pp", kI}}));
  EXPECT_EQ((Layout{{"dp", kS0}, {"tp", kS1}}), (Layout{{"tp", kS1}, {"dp", kS0}}));
  EXPECT_NE((Layout{{"dp", kS0}, {"tp", kS0}}), (Layout{{"tp", kS0}, {"dp", kS0}}));
}

TEST(Layout, DualAndCompletion) {
  const Mesh mesh = Mesh::create(make_record_world(0, 8), {{"dp", 2}, {"pp", 2}, {"tp", 2}});
  const Layout layout{{"tp", kS0}, {"dp", kR}};
  EXPECT_EQ(layout.dual().to_string(), "tp=S(0) dp=P");
  EXPECT_EQ(layout.completed(mesh, kI).to_string(), "tp=S(0) dp=R pp=I");
  EXPECT_EQ(Layout::all(mesh, kI).to_string(), "dp=I pp=I tp=I");
}

}  // namespace
}  // namespace caravan::testing::layout_test
