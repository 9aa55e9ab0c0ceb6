#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

/// Argument checks. All throw UsageError before anything is sent. `op` is the name of the method.
namespace caravan::c10d_arguments {

[[noreturn]] void refuse(const char* op, std::string fact, std::string action);
[[noreturn]] void refuse_count(const char* op, size_t count);

/// The only entry of a list. c10d's lists have an entry for each device of a rank, of which there is one here.
template <class T>
const T& only(const std::vector<T>& list, const char* op) {
  if (list.size() != 1) refuse_count(op, list.size());
  return list.front();
}

/// Returns `list` if it has a tensor for each rank.
const std::vector<at::Tensor>& one_each(const std::vector<at::Tensor>& list, int size, const char* op);
void check_same_lengths(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* op);
size_t check_root(int64_t root, int size, const char* op);
/// The peer and the tag of a message.
void check_message(int peer, int rank, int size, int tag, const char* op);
/// A list for each rank, of `length` tensors each, at least one.
void check_lists(const std::vector<std::vector<at::Tensor>>& lists, size_t length, int size, const char* op);

/// The number of elements of each rank, for a tensor that is split along dim 0 into `rows`, or equally if that is
/// empty.
std::vector<int64_t> split_counts(const std::vector<int64_t>& rows, const at::Tensor& tensor, int size, const char* op);

}  // namespace caravan::c10d_arguments
