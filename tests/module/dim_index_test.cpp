#include "caravan/module/plan/dim_index.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/ranks/rank_case.h"

namespace caravan::dim_index_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Piece = DimIndex::Run;

TEST(DimIndex, OfTheWholeFitsEverySize) {
  const DimIndex whole;
  EXPECT_TRUE(whole.is_whole());
  for (const int64_t size : {0, 1, 7}) EXPECT_EQ(whole.global(size), size);
  EXPECT_THAT(whole.runs(7), ElementsAre(Piece{0, 7}));
  EXPECT_THAT(whole.runs(0), IsEmpty());
}

TEST(DimIndex, OfAPieceKnowsTheWhole) {
  const DimIndex piece(3, 4, 12);
  EXPECT_FALSE(piece.is_whole());
  EXPECT_EQ(piece.global(4), 12);
  EXPECT_THAT(piece.runs(4), ElementsAre(Piece{3, 4}));
  EXPECT_THAT(error_of<ShapeError>([&] { piece.global(12); }), HasSubstr("4 elements of 12, but the tensor has 12"));
  EXPECT_THROW(piece.runs(5), ShapeError);
}

TEST(DimIndex, RunsThatFollowEachOtherAreOne) {
  const DimIndex zigzag({{0, 2}, {6, 2}}, 8);
  EXPECT_THAT(zigzag.runs(4), ElementsAre(Piece{0, 2}, Piece{6, 2}));
  EXPECT_EQ(DimIndex({{0, 2}, {2, 0}, {2, 3}}, 8), DimIndex(0, 5, 8));
  EXPECT_NE(DimIndex({{2, 3}, {0, 2}}, 8), DimIndex(0, 5, 8)) << "the order is part of it";
  EXPECT_NE(DimIndex(0, 8, 8), DimIndex()) << "one fits a size, the other every size";
}

TEST(DimIndex, OfATensorHasAnIndexForEachElement) {
  const DimIndex index = DimIndex::of(at::tensor({4, 5, 6, 1, 3, 2}, at::kLong), 7);
  EXPECT_THAT(index.runs(6), ElementsAre(Piece{4, 3}, Piece{1, 1}, Piece{3, 1}, Piece{2, 1}));
  EXPECT_EQ(DimIndex::of(at::empty({0}, at::kLong), 7).global(0), 7);
  EXPECT_THROW(DimIndex::of(at::tensor({7}, at::kLong), 7), ShapeError);
}

TEST(DimIndex, WhatIsOutsideIsRefused) {
  EXPECT_THAT(error_of<ShapeError>([] { DimIndex(5, 3, 7); }), HasSubstr("3 elements from 5 on are outside"));
  EXPECT_THROW(DimIndex(-1, 3, 7), ShapeError);
  EXPECT_THROW(DimIndex(1, -1, 7), ShapeError);
  EXPECT_THROW(DimIndex(0, 0, -1), ShapeError);
}

TEST(DimIndex, OfASliceAreThoseElements) {
  const DimIndex index({{10, 3}, {2, 4}}, 20);
  std::vector<int64_t> all;
  for (const Piece& run : index.runs(7)) {
    for (int64_t i = 0; i < run.count; ++i) all.push_back(run.first + i);
  }
  for (int64_t begin = 0; begin <= 7; ++begin) {
    for (int64_t count = 0; begin + count <= 7; ++count) {
      const DimIndex slice = index.slice(begin, count, 7);
      EXPECT_EQ(slice.global(count), 20);
      const at::Tensor part = at::tensor(std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
      EXPECT_EQ(slice, DimIndex::of(part.to(at::kLong), 20));
    }
  }
  EXPECT_EQ(DimIndex().slice(2, 3, 9), DimIndex(2, 3, 9));
  const std::vector<RowRun> runs{{4, 3}, {1, 2}};
  EXPECT_EQ(index.slices(runs, 7), DimIndex({{3, 3}, {11, 2}}, 20));
  EXPECT_EQ(DimIndex().slices(runs, 9), DimIndex({{4, 3}, {1, 2}}, 9));
  EXPECT_THROW(index.slice(5, 3, 7), ShapeError);
  EXPECT_THROW(index.slice(0, 1, 6), ShapeError);
}

TEST(DimIndex, OfALayoutIsThisRanksPiece) {
  for (int rank = 0; rank < 6; ++rank) {
    const Mesh mesh = Mesh::create(make_record_world(rank, 6), {{"dp", 2}, {"tp", 3}});
    const Layout layout{{"dp", Shard{0}}, {"tp", Shard{.dim = 1, .sizes = {1, 0, 4}}}};
    const std::vector<int64_t> first{0, 1, 1};
    const std::vector<int64_t> count{1, 0, 4};
    const auto tp = static_cast<size_t>(mesh["tp"].coord());
    EXPECT_EQ(DimIndex::of({4, 5}, 0, layout, mesh), DimIndex(2 * mesh["dp"].coord(), 2, 4));
    EXPECT_EQ(DimIndex::of({4, 5}, 1, layout, mesh), DimIndex(first[tp], count[tp], 5));
    const Layout blocked{{"tp", Shard{.dim = 0, .blocks = 2}}};
    const int64_t at = 2 * mesh["tp"].coord();
    EXPECT_EQ(DimIndex::of({12}, 0, blocked, mesh), DimIndex({{at, 2}, {6 + at, 2}}, 12));
  }
}

}  // namespace
}  // namespace caravan::dim_index_test
