#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/algorithms/intervals.h"
#include "caravan/comm/algorithms/schedule.h"
#include "caravan/comm/types.h"

namespace caravan::algorithms {

/// Memory for `count` elements, not initialised.
std::unique_ptr<std::byte[]> new_elements(int64_t count, Dtype dtype);

/// to[i] = from[i], from a 16-bit float to fp32 or back (to the nearest, ties to even), or between equal dtypes.
void convert(const std::byte* from, Dtype from_dtype, std::byte* to, Dtype to_dtype, int64_t count);

/// The elements of `hull` as a rank has them during a schedule, in one dtype. An element that nothing was written to is
/// still the one of `below`, or of the input, and is copied here only when it is read together with written ones, or in
/// another dtype.
class WorkingBuffer {
 public:
  struct Memory {
    Dtype dtype;
    Range hull;
    std::byte* place = nullptr;            ///< of hull's first element; null: memory of its own
    const WorkingBuffer* below = nullptr;  ///< the buffer of the steps before
    bool exists = true;                    ///< else nothing is allocated, read or written
  };
  WorkingBuffer(Memory memory, ConstBuffer input, int64_t input_begin);

  Dtype dtype() const noexcept { return memory_.dtype; }
  /// Valid elements, to be read until the next write to them.
  ConstBuffer read(Range range);
  /// Where to write `range`; it counts as written from now on.
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
