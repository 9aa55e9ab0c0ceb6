#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace caravan {

/// A tensor that is to lie in a chunk.
struct ChunkTensor {
  std::string name;
  int64_t elems = 0;
};

/// Equal chunks, filled with tensors in the given order: a tensor that does not fit into the rest of a chunk begins the
/// next. (Fang et al., PatrickStar, arXiv 2108.05818.) With the order in which a step uses the tensors, a move of one
/// chunk brings what is needed next, and what is moved always has the same size, so that memory does not fragment.
struct ChunkLayout {
  struct Slot {
    int chunk = 0;
    int64_t offset = 0;  ///< in elements, in its chunk
  };
  int64_t chunk_elems = 0;
  int num_chunks = 0;
  std::vector<ChunkTensor> tensors{};
  std::vector<Slot> slots{};  ///< by tensor

  int64_t total_elems() const noexcept { return chunk_elems * num_chunks; }
  int64_t used_elems() const noexcept;
  /// Part of the chunks that holds no tensor, 0 to 1.
  double waste() const noexcept;
};

/// Throws ShapeError, naming the tensor and its size, if one is larger than a chunk or has no elements.
ChunkLayout lay_out_chunks(std::vector<ChunkTensor> tensors, int64_t chunk_elems);

/// Sizes of chunks to try: smallest, smallest + step .. up to largest.
struct ChunkSizes {
  int64_t smallest = 0;
  int64_t largest =
      0;  ///< what the device can hold beside everything else: two chunks at least, of the smallest budget
  int64_t step = 0;
};

struct ChunkSizeTried {
  int64_t chunk_elems = 0;
  int64_t total_elems = 0;  ///< of all chunks; -1: a tensor does not fit
};

/// What a size costs, for each that is tried: a line of `inspect`.
std::vector<ChunkSizeTried> try_chunk_sizes(std::span<const ChunkTensor> tensors, const ChunkSizes& sizes);

/// The layout whose chunks take the least memory, of those the one with the smallest chunks. Throws ShapeError, naming
/// the tensor, its size and the largest chunk, if a tensor fits into none: it must be tiled, or kept apart from chunks.
ChunkLayout search_chunk_size(std::vector<ChunkTensor> tensors, const ChunkSizes& sizes);

}  // namespace caravan
