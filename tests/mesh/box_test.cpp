#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/mesh/layout.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::box_test {
namespace {

using ::testing::HasSubstr;

const Placement kR = Replicate{};
const Placement kS0 = Shard{0};

Mesh mesh_of(int rank, std::vector<AxisSize> axes) {
  int size = 1;
  for (const AxisSize& axis : axes) size *= axis.size;
  return Mesh::create(make_record_world(rank, size), std::move(axes));
}

/// The rows of 12 that rank `rank` of dp=2 tp=3 holds.
std::pair<int64_t, int64_t> rows(int rank, const Layout& layout) {
  const Box box = local_box({12, 5}, layout, mesh_of(rank, {{"dp", 2}, {"tp", 3}}));
  EXPECT_EQ(box.offset[1], 0);
  EXPECT_EQ(box.size[1], 5);
  return {box.offset[0], box.size[0]};
}

TEST(LocalBox, TheMajorAxisCutsFirst) {
  using Rows = std::pair<int64_t, int64_t>;
  const Layout dp_major{{"dp", kS0}, {"tp", kS0}};
  const Layout tp_major{{"tp", kS0}, {"dp", kS0}};
  for (int rank = 0; rank < 6; ++rank) {
    const int dp = rank / 3;
    const int tp = rank % 3;
    EXPECT_EQ(rows(rank, dp_major), Rows(6 * dp + 2 * tp, 2));
    EXPECT_EQ(rows(rank, tp_major), Rows(4 * tp + 2 * dp, 2));
    EXPECT_EQ(rows(rank, {{"dp", kR}, {"tp", kS0}}), Rows(4 * tp, 4));
    EXPECT_EQ(rows(rank, {{"tp", kS0}}), Rows(4 * tp, 4));  // an axis that is not named holds the whole
    EXPECT_EQ(rows(rank, {{"dp", Partial{}}, {"tp", Invariant{}}}), Rows(0, 12));
  }
}

TEST(LocalBox, SizesAndOwners) {
  using Rows = std::pair<int64_t, int64_t>;
  const int64_t offset[] = {0, 2, 12};
  const int64_t size[] = {2, 10, 0};
  for (int rank = 0; rank < 6; ++rank) {
    const int dp = rank / 3;
    const int tp = rank % 3;
    EXPECT_EQ(rows(rank, {{"tp", Shard{0, {2, 10, 0}}}}), Rows(offset[tp], size[tp]));
    EXPECT_EQ(rows(rank, {{"tp", Shard{0, {2, 10, 0}}}, {"dp", kS0}}),
              Rows(offset[tp] + dp * size[tp] / 2, size[tp] / 2));
    EXPECT_EQ(rows(rank, {{"dp", kS0}, {"tp", Shard{0, {1, 5, 0}}}}).first, 6 * dp + (tp == 0 ? 0 : tp == 1 ? 1 : 6));
    EXPECT_EQ(rows(rank, {{"tp", Shard{.dim = 0, .owner = 1}}}).second, tp == 1 ? 12 : 0);
  }
}

TEST(GlobalShape, IsTheInverse) {
  const std::vector<AxisSize> axes{{"dp", 2}, {"tp", 3}};
  const std::vector<int64_t> shape{12, 6};
  const std::vector<Layout> layouts{{{"dp", kS0}, {"tp", kS0}},
                                    {{"tp", kS0}, {"dp", kS0}},
                                    {{"dp", Shard{1}}, {"tp", Shard{0, {5, 7, 0}}}},
                                    {{"tp", Shard{0, {2, 10, 0}}}, {"dp", kS0}},
                                    {{"dp", kS0}, {"tp", Shard{0, {1, 5, 0}}}},
                                    {{"tp", Shard{.dim = 0, .owner = 1, .rows = 12}}},
                                    {{"dp", kS0}, {"tp", Shard{.dim = 0, .owner = 2, .rows = 6}}},
                                    {{"dp", Partial{}}, {"tp", kR}},
                                    {}};
  for (const Layout& layout : layouts) {
    for (int rank = 0; rank < 6; ++rank) {
      const Mesh mesh = mesh_of(rank, axes);
      EXPECT_EQ(global_shape(local_box(shape, layout, mesh).size, layout, mesh), shape) << layout.to_string();
    }
  }
}

TEST(GlobalShape, AnOwnerAloneDoesNotGiveTheNumberOfRows) {
  const Layout layout{{"pp", Shard{.dim = 0, .owner = 1}}};
  EXPECT_EQ(global_shape({6, 2}, layout, mesh_of(1, {{"pp", 2}})), (std::vector<int64_t>{6, 2}));
  EXPECT_THAT(refusal<ShapeError>([&] {
                global_shape({0, 2}, layout, mesh_of(0, {{"pp", 2}}), "w");
              }),
              HasSubstr("axis pp is S(0; on 1): coordinate 0 holds no rows and cannot tell how many there are"));
  const Layout sized{{"pp", Shard{0, {2, 4}}}};
  EXPECT_THAT(refusal<ShapeError>([&] {
                global_shape({4, 2}, sized, mesh_of(0, {{"pp", 2}}), "w");
              }),
              HasSubstr("w [4, 2]: dim 0 has 4 rows here; S(0; 2 4) on axis pp gives coordinate 0 2 rows"));
}

TEST(LocalBox, RefusesOnEveryRank) {
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh = mesh_of(rank, {{"dp", 4}, {"tp", 3}});
    const std::string text = refusal<ShapeError>([&] {
      local_box({4096, 1000}, {{"dp", Invariant{}}, {"tp", Shard{1}}}, mesh, "up.weight");
    });
    EXPECT_THAT(text,
                HasSubstr("[local_box] up.weight [4096, 1000]: dim 1 has 1000 elements, not divisible by axis tp (3)"));
    EXPECT_THAT(text, HasSubstr("where: " + mesh.where() + ", layout dp=I tp=S(1)"));
    EXPECT_THAT(text, HasSubstr("do: pad the dim to 1002, or choose tp from {1, 2, 4, 5, 8, 10}"));
    // Only the second coordinate of tp gets rows that dp cannot split, but all ranks throw.
    EXPECT_NE(refusal<ShapeError>([&] { local_box({12}, {{"tp", Shard{0, {4, 6, 2}}}, {"dp", kS0}}, mesh); }), "");
  }
  const Mesh mesh = mesh_of(0, {{"tp", 2}});
  EXPECT_THAT(refusal<LayoutError>([&] {
                local_box({4, 4}, {{"tp", Shard{2}}}, mesh);
              }),
              HasSubstr("axis tp is S(2), but there are 2 dims"));
  EXPECT_THAT(refusal<LayoutError>([&] { local_box({}, {{"tp", kS0}}, mesh); }), HasSubstr("cannot be sharded"));
  EXPECT_THAT(refusal<UsageError>([&] { local_box({4}, {{"pt", kS0}}, mesh); }), HasSubstr("choose from tp"));
}

}  // namespace
}  // namespace caravan::testing::box_test
