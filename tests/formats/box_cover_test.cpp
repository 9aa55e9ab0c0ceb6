#include "caravan/formats/checkpoint/box_cover.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace caravan::box_cover_test {
namespace {

using Shape = std::vector<int64_t>;

/// Counts, element by element, how often each is in a box.
bool covers_once_by_counting(const Shape& shape, const std::vector<Box>& boxes) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  std::vector<int> counts(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    Shape at(shape.size());
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
    for (const Box& box : boxes) {
      bool is_inside = true;
      for (size_t d = 0; d < shape.size(); ++d) {
        is_inside = is_inside && at[d] >= box.offset[d] && at[d] < box.offset[d] + box.size[d];
      }
      counts[static_cast<size_t>(i)] += is_inside ? 1 : 0;
    }
  }
  return std::ranges::all_of(counts, [](int count) { return count == 1; });
}

/// Cuts `box` at random, `times` times.
void cut(const Box& box, int times, std::mt19937& random, std::vector<Box>& pieces) {
  const auto d = static_cast<size_t>(random() % std::max<size_t>(box.size.size(), 1));
  if (times == 0 || box.size.empty()) {
    pieces.push_back(box);
    return;
  }
  const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(box.size[d] + 1));
  Box low = box, high = box;
  low.size[d] = first;
  high.offset[d] += first;
  high.size[d] -= first;
  cut(low, times - 1, random, pieces);
  cut(high, times - 1, random, pieces);
}

TEST(BoxCover, MatchesCountingElements) {
  std::mt19937 random(7);
  int sound = 0;
  int faulty = 0;
  for (const Shape& shape :
       {Shape{}, Shape{7}, Shape{1}, Shape{5, 4}, Shape{3, 4, 2}, Shape{2, 3, 2, 2}, Shape{0, 3}}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<Box> boxes;
      cut({Shape(shape.size(), 0), shape}, round % 5, random, boxes);
      std::ranges::shuffle(boxes, random);
      EXPECT_TRUE(covers_once(shape, boxes));
      // One box is moved, resized, doubled or left out.
      Box& box = boxes[random() % boxes.size()];
      const int change = round % 4;
      if (change == 0) boxes.push_back(box);
      if (change == 1) boxes.erase(boxes.begin() + (&box - boxes.data()));
      for (size_t d = 0; change > 1 && d < shape.size(); ++d) {
        if (change == 2)
          box.offset[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] - box.size[d] + 1));
        if (change == 3)
          box.size[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] - box.offset[d] + 1));
      }
      const bool want = covers_once_by_counting(shape, boxes);
      EXPECT_EQ(covers_once(shape, boxes), want);
      ++(want ? sound : faulty);
    }
  }
  EXPECT_GT(sound, 100);
  EXPECT_GT(faulty, 500);
}

/// A comparison of all pairs would take hours here.
TEST(BoxCover, TakesManyBoxes) {
  constexpr int64_t kRows = 400'000;
  std::vector<Box> rows;
  for (int64_t i = 0; i < kRows; ++i) rows.push_back({{(i * 7919) % kRows, 0}, {1, 3}});
  EXPECT_TRUE(covers_once({kRows, 3}, rows));
  rows.back() = rows.front();
  EXPECT_FALSE(covers_once({kRows, 3}, rows));

  constexpr int64_t kSide = 600;
  std::vector<Box> grid;
  for (int64_t i = 0; i < kSide * kSide; ++i) grid.push_back({{i / kSide * 2, i % kSide * 5}, {2, 5}});
  EXPECT_TRUE(covers_once({2 * kSide, 5 * kSide}, grid));
  grid[4711].offset[1] += 1;
  EXPECT_FALSE(covers_once({2 * kSide, 5 * kSide}, grid));
}

TEST(BoxCover, CutDimsAreThoseThatABoxDoesNotSpan) {
  EXPECT_EQ(cut_dims({4, 3, 2}, {{{0, 0, 0}, {4, 1, 2}}, {{0, 1, 0}, {4, 2, 2}}}), (std::vector<size_t>{1}));
  EXPECT_EQ(cut_dims({4, 3}, {{{0, 0}, {4, 3}}}), (std::vector<size_t>{}));
}

}  // namespace
}  // namespace caravan::box_cover_test
