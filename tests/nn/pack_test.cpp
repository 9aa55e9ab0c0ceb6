#include "caravan/nn/product/pack.h"

#include <cstdint>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/nn/attention/tiles/softmax_tiles.h"

namespace caravan::pack_test {
namespace {

using kernels::Bf16;

constexpr uint16_t kNan = 0x7fff;

/// Every element that is not of the matrix is zero, whatever was there before; nothing else is written.
class PackedPairs : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(PackedPairs, areRowsInterleaved) {
  const auto [rows, width] = GetParam();
  for (const int64_t more : {0, 2}) {
    const int64_t stride = width + 3, pitch = (width + 15) / 16 * 16, padded = (rows + 1) / 2 * 2 + more;
    std::vector<Bf16> from(static_cast<size_t>(rows * stride), Bf16{kNan});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        from[static_cast<size_t>(row * stride + i)].bits = static_cast<uint16_t>(1 + row * width + i);
      }
    }
    std::vector<Bf16> to(static_cast<size_t>((padded + 1) * pitch), Bf16{kNan});
    kernels::pack_row_pairs(from.data(), stride, rows, width, to.data(), padded, pitch);
    for (int64_t row = 0; row < padded; ++row) {
      for (int64_t i = 0; i < pitch; ++i) {
        const bool is_inside = row < rows && i < width;
        const auto at = static_cast<size_t>(row / 2 * 2 * pitch + 2 * i + row % 2);
        ASSERT_EQ(to[at].bits, is_inside ? 1 + row * width + i : 0) << row << ", " << i;
      }
    }
    for (int64_t i = 0; i < pitch; ++i) ASSERT_EQ(to[static_cast<size_t>(padded * pitch + i)].bits, kNan);
  }
}

INSTANTIATE_TEST_SUITE_P(, PackedPairs,
                         ::testing::Combine(::testing::Values(1, 2, 5, 64), ::testing::Values(1, 15, 16, 33, 64)));

TEST(UnpackedRows, areScaledAlsoInPlace) {
  for (const int64_t width : {1, 16, 37}) {
    constexpr int64_t kRows = 3, kPitch = 48;
    std::vector<float> rows(kRows * kPitch);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
    std::vector<float> expected = rows;
    const std::vector<float> factors{2, 0.5F, -1};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        expected[static_cast<size_t>(row * kPitch + i)] *= factors[static_cast<size_t>(row)];
      }
    }
    kernels::unpack_rows(rows.data(), kPitch, kRows, width, factors.data(), false, rows.data(), kPitch);
    EXPECT_EQ(rows, expected) << width;
  }
}

/// A step whose queries see nothing, one whose ranges grow, and one with a query that sees nothing.
TEST(StepRanges, areThoseOfTheirQueries) {
  using kernels::kTileStep;
  std::vector<int32_t> first(kernels::kTileQueries, 5), end(kernels::kTileQueries, 5), document(kernels::kTileQueries);
  for (size_t i = 0; i < kTileStep; ++i) {
    first[kTileStep + i] = 2;
    end[kTileStep + i] = static_cast<int32_t>(10 + i);
    first[2 * kTileStep + i] = static_cast<int32_t>(i);
    end[2 * kTileStep + i] = 40;
  }
  first[2 * kTileStep] = 50;  // sees none
  kernels::StepRanges steps;
  kernels::TileRanges ranges{.first = first.data(), .end = end.data()};
  kernels::find_step_ranges(ranges, steps);
  EXPECT_GE(steps.any_first[0], steps.any_end[0]);
  EXPECT_GE(steps.every_first[0], steps.every_end[0]);
  EXPECT_EQ(steps.any_first[1], 2);
  EXPECT_EQ(steps.any_end[1], 25);
  EXPECT_EQ(steps.every_first[1], 2);
  EXPECT_EQ(steps.every_end[1], 10);
  EXPECT_EQ(steps.any_first[2], 1);
  EXPECT_EQ(steps.any_end[2], 40);
  EXPECT_GE(steps.every_first[2], steps.every_end[2]);
  ranges.document = document.data();
  kernels::find_step_ranges(ranges, steps);
  EXPECT_EQ(steps.any_end[1], 25);
  EXPECT_GE(steps.every_first[1], steps.every_end[1]);
}

}  // namespace
}  // namespace caravan::pack_test
