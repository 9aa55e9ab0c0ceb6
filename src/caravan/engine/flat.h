#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"
#include "caravan/module/parameter.h"

namespace caravan {

/// Where the pieces of a model's parameters lie in one flat buffer: parameters, gradients and each optimizer moment use
/// the same offsets. Parameters with weight decay first, then those without, each in reverse forward order, which is
/// about the order in which backward completes their gradients: a bucket is a contiguous range, and so is a
/// weight-decay group.
class FlatLayout {
 public:
  /// Offsets are multiples of this many elements: 64 bytes in bf16, 128 in fp32. The gaps stay zero in every buffer.
  static constexpr int64_t kAlignment = 32;

  struct Slot {
    Parameter* parameter;
    int64_t offset;  ///< in elements
    int64_t count;   ///< elements of the local piece
  };

  /// Of materialised parameters that require a gradient; the others are left out.
  explicit FlatLayout(const std::vector<Parameter*>& parameters);

  const std::vector<Slot>& slots() const noexcept { return slots_; }
  const Slot& slot(const Parameter& parameter) const { return slots_[index_.at(&parameter)]; }
  size_t index(const Parameter& parameter) const { return index_.at(&parameter); }
  bool has(const Parameter& parameter) const { return index_.contains(&parameter); }
  /// Elements of the whole buffer, gaps included, and of its first part, which decays.
  int64_t count() const noexcept { return count_; }
  int64_t decayed_count() const noexcept { return decayed_count_; }

  /// The piece of `parameter` in `flat`, in the shape of its rest tensor.
  at::Tensor view(const at::Tensor& flat, const Parameter& parameter) const;

 private:
  std::vector<Slot> slots_;
  std::unordered_map<const Parameter*, size_t> index_;
  int64_t count_ = 0;
  int64_t decayed_count_ = 0;
};

/// A model's values and gradients in flat buffers of Communicator::allocate.
struct FlatState {
  FlatLayout layout;
  at::Tensor values;     ///< every rest tensor is a view of it
  at::Tensor gradients;  ///< fp32 (fp64 for fp64 parameters)
};

/// Moves the rest tensors into one buffer, in place: every handle to them, a user's module's included, sees the new
/// memory. Throws UsageError if nothing requires a gradient or the dtypes differ.
FlatState flatten(const std::vector<Parameter*>& parameters, Communicator& comm);

}  // namespace caravan
