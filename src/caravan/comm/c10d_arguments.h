#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

/// Checks of what c10d's users give. All throw UsageError, before anything is sent; `op` is the name of the call.
namespace caravan::c10d_arguments {

[[noreturn]] void refuse(const char* op, std::string fact, std::string action);
[[noreturn]] void refuse_count(const char* op, size_t count);

/// The one entry of a list: of a rank's devices, in c10d's words.
template <class T>
T& only(std::vector<T>& list, const char* op) {
  if (list.size() != 1) refuse_count(op, list.size());
  return list.front();
}

/// The list, if it has a tensor for each rank.
const std::vector<at::Tensor>& one_each(const std::vector<at::Tensor>& list, int size, const char* op);
void check_same_lengths(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* op);
size_t check_root(int64_t root, int size, const char* op);
void check_tag(int tag, const char* op);

/// Each rank's elements of a tensor that is split along dim 0 into `rows`, or (empty) into equal parts.
std::vector<int64_t> split_counts(const std::vector<int64_t>& rows, const at::Tensor& tensor, int size, const char* op);

}  // namespace caravan::c10d_arguments
