#include "caravan/mesh/placement.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::placement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Placement, DualSwapsValueAndGradient) {
  EXPECT_EQ(dual(Replicate{}), Placement(Partial{}));
  EXPECT_EQ(dual(Partial{}), Placement(Replicate{}));
  EXPECT_EQ(dual(Invariant{}), Placement(Invariant{}));
  EXPECT_EQ(dual(Shard{1, {2, 3}}), Placement(Shard{1, {2, 3}}));
  for (const Placement& p : {Placement(Replicate{}), Placement(Partial{}), Placement(Shard{0, {}, 1})})
    EXPECT_EQ(dual(dual(p)), p);
}

TEST(Placement, TextMatchesTheDesign) {
  EXPECT_EQ(Placement(Replicate{}).to_string(), "R");
  EXPECT_EQ(Placement(Invariant{}).to_string(), "I");
  EXPECT_EQ(Placement(Partial{}).to_string(), "P");
  EXPECT_EQ(Placement(Shard{0}).to_string(), "S(0)");
  EXPECT_EQ(Placement(Shard{0, {3, 1, 2}}).to_string(), "S(0; 3 1 2)");
  EXPECT_EQ(Placement(Shard{.dim = 2, .owner = 1}).to_string(), "S(2; on 1)");
  EXPECT_EQ(Placement(Shard{.dim = 0, .blocks = 3}).to_string(), "S(0; blocks 3)");
  EXPECT_EQ(Placement(Shard{.dim = 0, .sizes = {2, 1}, .blocks = 3}).to_string(), "S(0; 2 1; blocks 3)");
}

TEST(Placement, EqualityIsOfWhatItDoes) {
  EXPECT_NE(Placement(Shard{0}), Placement(Shard{1}));
  EXPECT_NE(Placement(Shard{0}), Placement(Shard{0, {1, 1}}));
  EXPECT_NE(Placement(Shard{.owner = 0}), Placement(Shard{.owner = 1}));
  EXPECT_NE(Placement(Shard{0}), Placement(Shard{.dim = 0, .blocks = 2}));
  EXPECT_EQ(dual(Shard{.dim = 0, .blocks = 2}), Placement(Shard{.dim = 0, .blocks = 2}));
  EXPECT_NE(Placement(Replicate{}), Placement(Invariant{}));
  EXPECT_EQ(Placement(Shard{.owner = 1}), Placement(Shard{.owner = 1, .rows = 8}));  // rows are a hint
}

TEST(Placement, Splits) {
  EXPECT_THAT(Placement(Shard{0}).split(6, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(Placement(Shard{0}).split(0, 2), ElementsAre(0, 0));
  EXPECT_THAT(Placement(Shard{0, {1, 5, 0}}).split(6, 3), ElementsAre(1, 5, 0));
  EXPECT_THAT(Placement(Shard{.dim = 0, .owner = 2}).split(6, 3), ElementsAre(0, 0, 6));
  EXPECT_THAT(Placement(Shard{.dim = 0, .blocks = 2}).split(12, 3), ElementsAre(4, 4, 4));
  EXPECT_THAT(Placement(Shard{.dim = 0, .sizes = {1, 3, 0}, .blocks = 3}).split(12, 3), ElementsAre(3, 9, 0));
}

TEST(Placement, RefusesWhatDoesNotFitNamingTheChoices) {
  const auto split = [](Shard shard, int64_t rows, int n) {
    return refusal<ShapeError>([&] { Placement(std::move(shard)).split(rows, n, "w"); });
  };
  EXPECT_THAT(split(Shard{1}, 1000, 3), HasSubstr("[split] w: dim 1 has 1000 elements, not divisible by 3"));
  EXPECT_THAT(split(Shard{1}, 1000, 3),
              HasSubstr("pad the dim to 1002, or choose the degree from {1, 2, 4, 5, 8, 10}"));
  EXPECT_THAT(split(Shard{0, {1, 2}}, 4, 2), HasSubstr("dim 0 has 4 elements, S(0; 1 2) places 3"));
  EXPECT_THAT(split(Shard{0, {1, 2}}, 3, 3), HasSubstr("S(0; 1 2) has 2 sizes, the axis has 3 coordinates"));
  EXPECT_THAT(split(Shard{.owner = 3}, 3, 3), HasSubstr("choose an owner from 0 to 2"));
  EXPECT_THAT(split(Shard{.owner = 0, .rows = 4}, 3, 3), HasSubstr("dim 0 has 3 elements, S(0; on 0) places 4"));
  EXPECT_THAT(split(Shard{.dim = 1, .blocks = 3}, 1000, 2),
              HasSubstr("dim 1 has 1000 elements, not divisible by the 3 blocks of S(1; blocks 3)"));
  EXPECT_THAT(split(Shard{.dim = 1, .blocks = 3}, 1000, 2), HasSubstr("choose blocks from {1, 2, 4, 5, 8, 10}"));
  EXPECT_THAT(split(Shard{.dim = 1, .blocks = 5}, 1000, 3),
              HasSubstr("each of the 5 blocks of dim 1 has 200 elements, not divisible by 3"));
  EXPECT_THAT(split(Shard{.dim = 1, .blocks = 5}, 1000, 3), HasSubstr("pad the dim to 1005"));
  EXPECT_THAT(split(Shard{.dim = 0, .sizes = {1, 2}, .blocks = 2}, 8, 2),
              HasSubstr("dim 0 has 8 elements, S(0; 1 2; blocks 2) places 6"));
  EXPECT_THAT(split(Shard{.dim = 0, .sizes = {1, 2}, .blocks = 2}, 8, 2),
              HasSubstr("give sizes of one block, which add up to 4"));
  EXPECT_THAT(refusal<LayoutError>([] { Placement(Replicate{}).split(4, 2); }), HasSubstr("R does not split a dim"));
}

TEST(Placement, RefusesInvalidShards) {
  const auto make = [](Shard shard) { return refusal<LayoutError>([&] { Placement{std::move(shard)}; }); };
  EXPECT_THAT(make(Shard{-1}), HasSubstr("[placement] S(-1): dim -1 is negative"));
  EXPECT_THAT(make(Shard{-1}), HasSubstr("count dims from 0"));
  EXPECT_THAT(make(Shard{0, {2, -1}}), HasSubstr("a size is negative"));
  EXPECT_THAT(make(Shard{0, {2, 1}, 0}), HasSubstr("has sizes and an owner"));
  EXPECT_THAT(make(Shard{0, {}, -2}), HasSubstr("owner -2 is not a coordinate"));
  EXPECT_THAT(make(Shard{.dim = 0, .rows = 3}), HasSubstr("has 3 rows and no owner"));
  EXPECT_THAT(make(Shard{.dim = 0, .blocks = 0}), HasSubstr("has 0 blocks"));
  EXPECT_THAT(make(Shard{.dim = 0, .owner = 1, .blocks = 2}), HasSubstr("has 2 blocks and an owner"));
  EXPECT_THAT(make(Shard{.dim = 0, .owner = 1, .rows = -3}), HasSubstr("has -3 rows on its owner"));
}

TEST(Divisors, AreTheNearestOnEachSide) {
  EXPECT_EQ(divisors_near(1000, 3), "{1, 2, 4, 5, 8, 10}");
  EXPECT_EQ(divisors_near(12, 8), "{2, 3, 4, 6, 12}");
  EXPECT_EQ(divisors_near(50257, 4), "{1, 29, 1733, 50257}");
  EXPECT_EQ(divisors_near(1, 1), "{1}");
}

}  // namespace
}  // namespace caravan::testing::placement_test
