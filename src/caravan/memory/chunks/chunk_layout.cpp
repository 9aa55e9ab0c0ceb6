#include "caravan/memory/chunks/chunk_layout.h"

#include <algorithm>

#include "caravan/base/error.h"

namespace caravan {
namespace {

void check_chunk_sizes(const ChunkSizes& sizes) {
  if (sizes.smallest > 0 && sizes.largest >= sizes.smallest && sizes.step > 0) return;
  throw UsageError({.op = "chunks",
                    .subject = "sizes to try",
                    .fact = "from " + std::to_string(sizes.smallest) + " to " + std::to_string(sizes.largest) +
                            " elements by " + std::to_string(sizes.step),
                    .where = {},
                    .action = "give a positive step, and a largest size that is not below the smallest"});
}

const ChunkTensor& largest_chunk_tensor(std::span<const ChunkTensor> tensors) {
  return *std::ranges::max_element(tensors, {}, &ChunkTensor::elems);
}

[[noreturn]] void refuse_chunk_tensor(const ChunkTensor& tensor, int64_t chunk_elems, const char* chunk) {
  throw ShapeError(
      {.op = "chunks",
       .subject = tensor.name,
       .fact = "has " + std::to_string(tensor.elems) + " elements, the " + chunk + " " + std::to_string(chunk_elems),
       .where = {},
       .action = "tile the layer, keep the tensor apart from the chunks, or allow larger chunks"});
}

// Number of chunks without any slot: what a size costs.
int count_chunks(std::span<const ChunkTensor> tensors, int64_t chunk_elems) {
  int count = 0;
  int64_t room = 0;
  for (const ChunkTensor& tensor : tensors) {
    if (tensor.elems > room) {
      ++count;
      room = chunk_elems;
    }
    room -= tensor.elems;
  }
  return count;
}

}  // namespace

int64_t ChunkLayout::used_elems() const noexcept {
  int64_t used = 0;
  for (const ChunkTensor& tensor : tensors) used += tensor.elems;
  return used;
}

double ChunkLayout::waste() const noexcept {
  return num_chunks == 0 ? 0 : 1 - static_cast<double>(used_elems()) / static_cast<double>(total_elems());
}

ChunkLayout lay_out_chunks(std::vector<ChunkTensor> tensors, int64_t chunk_elems) {
  ChunkLayout layout{.chunk_elems = chunk_elems};
  int64_t room = 0;
  for (const ChunkTensor& tensor : tensors) {
    if (tensor.elems < 1 || tensor.elems > chunk_elems) refuse_chunk_tensor(tensor, chunk_elems, "chunk");
    if (tensor.elems > room) {
      ++layout.num_chunks;
      room = chunk_elems;
    }
    layout.slots.push_back({.chunk = layout.num_chunks - 1, .offset = chunk_elems - room});
    room -= tensor.elems;
  }
  layout.tensors = std::move(tensors);
  return layout;
}

std::vector<ChunkSizeTried> try_chunk_sizes(std::span<const ChunkTensor> tensors, const ChunkSizes& sizes) {
  check_chunk_sizes(sizes);
  const int64_t need = tensors.empty() ? 0 : largest_chunk_tensor(tensors).elems;
  std::vector<ChunkSizeTried> result;
  for (int64_t size = sizes.smallest; size <= sizes.largest; size += sizes.step)
    result.push_back({.chunk_elems = size, .total_elems = need > size ? -1 : size * count_chunks(tensors, size)});
  return result;
}

ChunkLayout search_chunk_size(std::vector<ChunkTensor> tensors, const ChunkSizes& sizes) {
  const ChunkSizeTried* best = nullptr;
  const std::vector<ChunkSizeTried> tried = try_chunk_sizes(tensors, sizes);
  for (const ChunkSizeTried& size : tried)
    if (size.total_elems >= 0 && (best == nullptr || size.total_elems < best->total_elems)) best = &size;
  if (best == nullptr) refuse_chunk_tensor(largest_chunk_tensor(tensors), tried.back().chunk_elems, "largest chunk");
  return lay_out_chunks(std::move(tensors), best->chunk_elems);
}

}  // namespace caravan
