#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/types.h"

namespace caravan {

/// Our dtype for `type`, if there is one.
std::optional<Dtype> find_dtype(at::ScalarType type) noexcept;

/// A tensor as c10d's verbs give it to a communicator. Verbs that only move data support any dtype: those unknown to
/// communicators are sent as bytes, `scale` bytes an element.
struct C10dBuffer {
  Buffer buffer;
  int64_t scale = 1;
};

/// Throws UsageError (device) or ShapeError (not contiguous, undefined, sparse).
C10dBuffer movable_buffer(const at::Tensor& tensor, std::string_view op);

/// `tensor`, or a contiguous copy of one that is not contiguous. Throws as movable_buffer does for other tensors.
at::Tensor contiguous_of(const at::Tensor& tensor, std::string_view op);
/// Copies `memory` into `tensor` unless it is the same one. Not Tensor::copy_, which autograd would see: it may be an
/// autograd leaf.
void copy_to(const at::Tensor& tensor, const at::Tensor& memory);

/// Sizes of the tensors, in elements. Throws ShapeError unless all have one dtype.
std::vector<int64_t> counts_of(const std::vector<at::Tensor>& list, std::string_view op);

/// The tensors of a list, concatenated as one flat tensor: their own memory if it is contiguous, else new memory.
struct FlatList {
  at::Tensor flat;
  bool is_copy = false;
};
FlatList flat_of(const std::vector<at::Tensor>& list, std::string_view op);
/// Fills the flat tensor from the list, and back; no-ops unless it is a copy.
void copy_in(const FlatList& flat, const std::vector<at::Tensor>& list);
void copy_out(const FlatList& flat, const std::vector<at::Tensor>& list);

}  // namespace caravan
