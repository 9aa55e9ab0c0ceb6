#include "caravan/memory/chunks/chunk_layout.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing::chunk_layout_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<ChunkTensor> tensors_of(const std::vector<int64_t>& sizes) {
  std::vector<ChunkTensor> tensors;
  for (const int64_t size : sizes) tensors.push_back({"t" + std::to_string(tensors.size()), size});
  return tensors;
}

std::vector<std::pair<int, int64_t>> places(const ChunkLayout& layout) {
  std::vector<std::pair<int, int64_t>> result;
  for (const ChunkLayout::Slot& slot : layout.slots) result.emplace_back(slot.chunk, slot.offset);
  return result;
}

template <typename F>
std::string error_of(const F& body) {
  try {
    body();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkLayout, ATensorThatDoesNotFitBeginsTheNextChunk) {
  const ChunkLayout layout = lay_out_chunks(tensors_of({6, 3, 2, 8, 10, 1}), 10);
  EXPECT_THAT(places(layout), ElementsAre(std::pair(0, 0), std::pair(0, 6), std::pair(1, 0), std::pair(1, 2),
                                          std::pair(2, 0), std::pair(3, 0)));
  EXPECT_EQ(layout.num_chunks, 4);
  EXPECT_DOUBLE_EQ(layout.waste(), 10.0 / 40);
}

TEST(ChunkLayout, NamesATensorThatFitsIntoNoChunk) {
  EXPECT_THAT(error_of([] {
                lay_out_chunks(tensors_of({3, 11}), 10);
              }),
              AllOf(HasSubstr("t1"), HasSubstr("has 11 elements, the chunk 10"), HasSubstr("tile")));
  EXPECT_THAT(error_of([] {
                search_chunk_size(tensors_of({3, 40, 50}), {.smallest = 4, .largest = 33, .step = 8});
              }),
              AllOf(HasSubstr("t2"), HasSubstr("has 50 elements, the largest chunk 28"), HasSubstr("tile")));
  EXPECT_THROW(search_chunk_size({}, {.smallest = 4, .largest = 3, .step = 1}), UsageError);
}

TEST(ChunkLayout, SearchTakesTheLeastMemoryAndThenTheSmallestChunk) {
  const std::vector<ChunkTensor> tensors = tensors_of({4, 4, 4, 4, 4, 4});
  EXPECT_EQ(search_chunk_size(tensors, {.smallest = 5, .largest = 30, .step = 1}).chunk_elems, 8);
  EXPECT_EQ(search_chunk_size(tensors, {.smallest = 9, .largest = 11, .step = 1}).chunk_elems, 9);
  EXPECT_EQ(search_chunk_size(tensors, {.smallest = 3, .largest = 30, .step = 20}).chunk_elems, 23);
  const std::vector<ChunkSizeTried> tried = try_chunk_sizes(tensors, {.smallest = 3, .largest = 23, .step = 10});
  ASSERT_EQ(tried.size(), 3U);
  EXPECT_EQ(tried[0].total_elems, -1);
  EXPECT_EQ(tried[1].total_elems, 26);
  EXPECT_EQ(tried[2].total_elems, 46);
}

RC_GTEST_PROP(ChunkLayout, TensorsLieInOrderAndApart, ()) {
  const auto sizes = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 40));
  const auto chunk = *rc::gen::inRange<int64_t>(40, 100);
  const ChunkLayout layout = lay_out_chunks(tensors_of(sizes), chunk);
  int64_t end = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t begin = layout.slots[i].chunk * chunk + layout.slots[i].offset;
    RC_ASSERT(begin >= end);
    RC_ASSERT(layout.slots[i].offset + sizes[i] <= chunk);
    // A chunk is left only for a tensor that has no room in it.
    if (begin > end) RC_ASSERT(end % chunk + sizes[i] > chunk);
    end = begin + sizes[i];
  }
  RC_ASSERT(end <= layout.total_elems());
  RC_ASSERT(layout.total_elems() - end < chunk);
}

RC_GTEST_PROP(ChunkLayout, SearchIsTheLeastOfAllSizes, ()) {
  const auto sizes = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 40));
  RC_PRE(!sizes.empty());
  const ChunkLayout found = search_chunk_size(tensors_of(sizes), {.smallest = 10, .largest = 100, .step = 7});
  for (int64_t size = 10; size <= 100; size += 7) {
    if (size < *std::max_element(sizes.begin(), sizes.end())) continue;
    const int64_t total = lay_out_chunks(tensors_of(sizes), size).total_elems();
    RC_ASSERT(found.total_elems() <= total);
    if (size < found.chunk_elems) RC_ASSERT(found.total_elems() < total);
  }
}

}  // namespace
}  // namespace caravan::testing::chunk_layout_test
