#include <gmock/gmock.h>
#include <numeric>

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

Placement blocked(int blocks, std::vector<int64_t> sizes = {}) {
  return Shard{.dim = 0, .sizes = std::move(sizes), .blocks = blocks};
}

/// The rows that a rank of dp=2 tp=3 holds of 36, cut axis by axis.
std::vector<int64_t> listed_rows(int rank, const Layout& layout) {
  std::vector<int64_t> held(36);
  std::iota(held.begin(), held.end(), 0);
  for (const auto& [axis, placement] : layout.entries()) {
    const int n = axis == "dp" ? 2 : 3;
    const int coord = axis == "dp" ? rank / 3 : rank % 3;
    const size_t block = held.size() / static_cast<size_t>(placement.blocks());
    std::vector<int64_t> sizes = placement.sizes();
    if (sizes.empty()) sizes.assign(static_cast<size_t>(n), static_cast<int64_t>(block) / n);
    std::vector<int64_t> own;
    for (size_t i = 0; i < held.size(); ++i) {
      auto row = static_cast<int64_t>(i % block);  // of the block
      int of = 0;
      while (row >= sizes[static_cast<size_t>(of)]) row -= sizes[static_cast<size_t>(of++)];
      if (of == coord) own.push_back(held[i]);
    }
    held = own;
  }
  return held;
}

const std::vector<Layout> kBlocked{{{"tp", blocked(3)}},
                                   {{"tp", blocked(4, {2, 6, 1})}},
                                   {{"tp", blocked(2, {0, 18, 0})}},
                                   {{"dp", blocked(3)}, {"tp", kS0}},
                                   {{"tp", blocked(3)}, {"dp", kS0}},
                                   {{"tp", blocked(3)}, {"dp", Shard{0, {5, 7}}}},
                                   {{"tp", blocked(3)}, {"dp", Shard{0, {12, 0}}}},
                                   {{"tp", blocked(2)}, {"dp", blocked(3)}},
                                   {{"dp", kS0}, {"tp", blocked(6)}},
                                   {{"dp", blocked(18)}, {"tp", blocked(2, {1, 5, 3})}},
                                   {{"dp", kS0}, {"tp", kS0}}};

TEST(LocalBoxes, AreTheRowsOfEachBlockOneAfterAnother) {
  for (const Layout& layout : kBlocked) {
    for (int rank = 0; rank < 6; ++rank) {
      SCOPED_TRACE(layout.to_string() + ", rank " + std::to_string(rank));
      const Mesh mesh = mesh_of(rank, {{"dp", 2}, {"tp", 3}});
      const std::vector<int64_t> want = listed_rows(rank, layout);
      std::vector<int64_t> got;
      int64_t last = -1;
      for (const auto& [global, local_offset] : local_boxes({36, 5}, layout, mesh)) {
        EXPECT_EQ(local_offset, (std::vector<int64_t>{static_cast<int64_t>(got.size()), 0}));
        EXPECT_EQ(global.size[1], 5);
        EXPECT_NE(global.offset[0], last) << "adjacent boxes are one";
        for (int64_t i = 0; i < global.size[0]; ++i) got.push_back(global.offset[0] + i);
        last = global.offset[0] + global.size[0];
      }
      EXPECT_EQ(got, want);
      EXPECT_EQ(local_shape({36, 5}, layout, mesh), (std::vector<int64_t>{static_cast<int64_t>(want.size()), 5}));
    }
  }
}

TEST(LocalBoxes, AreTheProductOfTheRowsOfEachDim) {
  const Mesh mesh = mesh_of(4, {{"dp", 2}, {"tp", 3}});  // dp=1 tp=1
  const Layout layout{{"dp", Shard{.dim = 1, .blocks = 2}}, {"tp", blocked(2)}};
  const std::vector<PieceBox> want{
      {{{2, 2}, {2, 2}}, {0, 0}}, {{{2, 6}, {2, 2}}, {0, 2}}, {{{8, 2}, {2, 2}}, {2, 0}}, {{{8, 6}, {2, 2}}, {2, 2}}};
  EXPECT_EQ(local_boxes({12, 8}, layout, mesh), want);
  const auto rows = local_rows({12, 8}, layout, mesh);
  EXPECT_EQ(rows, (std::vector<std::vector<RowRun>>{{{2, 2}, {8, 2}}, {{2, 2}, {6, 2}}}));
  EXPECT_EQ(local_boxes({12, 0}, layout, mesh).size(), 1U) << "a piece without elements";
  EXPECT_EQ(local_boxes({}, {{"tp", kR}}, mesh).size(), 1U) << "a scalar";
}

/// All ranks throw, also those whose piece is one box.
TEST(LocalBox, RefusesBlockedShards) {
  for (int rank = 0; rank < 6; ++rank) {
    const Mesh mesh = mesh_of(rank, {{"dp", 2}, {"tp", 3}});
    const std::string text = refusal<LayoutError>([&] {
      local_box({12, 5}, {{"tp", blocked(2, {0, 6, 0})}}, mesh, "qkv.weight");
    });
    EXPECT_THAT(text, HasSubstr("[local_box] qkv.weight [12, 5]: axis tp is S(0; 0 6 0; blocks 2): a piece has rows of "
                                "2 blocks, which are not one box"));
    EXPECT_THAT(text, HasSubstr("do: take its boxes: local_boxes()"));
    EXPECT_THAT(refusal<ShapeError>([&] {
                  local_boxes({12, 5}, {{"tp", blocked(5)}}, mesh, "qkv.weight");
                }),
                HasSubstr("not divisible by the 5 blocks"));
  }
  EXPECT_EQ(local_box({12}, {{"tp", blocked(3)}}, mesh_of(0, {{"tp", 1}})), (Box{{0}, {12}}));
}

TEST(GlobalShape, IsTheInverseForBlockedShards) {
  for (const Layout& layout : kBlocked) {
    for (int rank = 0; rank < 6; ++rank) {
      const Mesh mesh = mesh_of(rank, {{"dp", 2}, {"tp", 3}});
      EXPECT_EQ(global_shape(local_shape({36, 5}, layout, mesh), layout, mesh), (std::vector<int64_t>{36, 5}));
    }
  }
  EXPECT_THAT(refusal<ShapeError>([&] {
                global_shape({3}, {{"tp", blocked(2)}}, mesh_of(0, {{"tp", 3}}));
              }),
              HasSubstr("not divisible by the 2 blocks"));
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
