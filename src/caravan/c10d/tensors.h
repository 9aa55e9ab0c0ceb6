#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/types.h"

namespace caravan {

/// A tensor as c10d's verbs give it to a communicator. Verbs that only move data take any dtype: what no communicator
/// knows travels as bytes, `scale` of them an element.
struct C10dBuffer {
  Buffer buffer;
  int64_t scale = 1;
};

/// Throws UsageError (device) or ShapeError (not contiguous, undefined, sparse).
C10dBuffer movable_buffer(const at::Tensor& tensor, std::string_view op);
/// For sums: throws UsageError also for a dtype that no communicator adds up.
Buffer reducible_buffer(const at::Tensor& tensor, std::string_view op);

/// Sizes of the tensors, in elements. Throws ShapeError unless all have one dtype.
std::vector<int64_t> counts_of(const std::vector<at::Tensor>& list, std::string_view op);

/// The tensors of a list, one after the other, as one flat tensor: their own memory where they lie so, else new memory.
struct FlatList {
  at::Tensor flat;
  bool is_copy = false;
};
FlatList flat_of(const std::vector<at::Tensor>& list, std::string_view op);
/// Fills the flat tensor from the list, and back; nothing to do unless it is a copy.
void copy_in(const FlatList& flat, const std::vector<at::Tensor>& list);
void copy_out(const FlatList& flat, const std::vector<at::Tensor>& list);

}  // namespace caravan
