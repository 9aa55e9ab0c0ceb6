#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/algorithms/intervals.h"
#include "caravan/comm/algorithms/message_plan.h"
#include "caravan/comm/types.h"

namespace caravan::algorithms {

/// Uninitialised memory for `count` elements.
std::unique_ptr<std::byte[]> new_elements(int64_t count, Dtype dtype);

/// to[i] = from[i], from a 16-bit float to fp32 or back (to the nearest, ties to even), or between equal dtypes.
void convert(const std::byte* from, Dtype from_dtype, std::byte* to, Dtype to_dtype, int64_t count);

/// The elements of `hull` that a rank has while it runs a plan, in one dtype. An element that has not been written is
/// still in `below`, or in the input. It is copied here only if it is read together with written ones, or in another
/// dtype.
class WorkingBuffer {
 public:
  struct Memory {
    Dtype dtype;
    Range hull;
    std::byte* place = nullptr;            ///< for the first element of hull; null: it allocates its own memory
    const WorkingBuffer* below = nullptr;  ///< the buffer of the earlier steps
    bool exists = true;                    ///< if false, nothing is allocated, read or written
  };
  WorkingBuffer(Memory memory, ConstBuffer input, int64_t input_begin);

  Dtype dtype() const noexcept { return memory_.dtype; }
  /// The elements of `range`, valid until the next write to them.
  ConstBuffer read(Range range);
  /// Memory to write `range` to. The range counts as written from now on.
  Buffer write(Range range);

 private:
  std::byte* at(int64_t element) const noexcept;
  const std::byte* input_at(int64_t element) const noexcept;
  void fill(Range gap);

  Memory memory_;
  ConstBuffer input_;
  int64_t input_begin_;
  std::unique_ptr<std::byte[]> own_;
  Intervals written_;
};

}  // namespace caravan::algorithms
