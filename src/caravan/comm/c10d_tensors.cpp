#include "caravan/comm/c10d_tensors.h"

#include <cstddef>
#include <cstring>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

void check_place(const at::Tensor& tensor, std::string_view op) {
  if (tensor.defined() && !tensor.is_cpu()) {
    throw UsageError(
        {.op = std::string(op),
         .fact = fmt::format("the tensor is on {}; the back-end takes host memory only", tensor.device().str()),
         .action = "give the process group a back-end for each device, as in \"cpu:caravan,cuda:nccl\""});
  }
  if (tensor.defined() && tensor.layout() == at::kStrided && tensor.is_contiguous()) return;
  buffer_of(tensor, op);  // says what is wrong
}

bool is_known(at::ScalarType type) {
  try {
    to_dtype(type);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::byte* bytes_at(const FlatList& flat, size_t begin) {
  return static_cast<std::byte*>(flat.flat.mutable_data_ptr()) + begin;
}

/// Not Tensor::copy_, which autograd would see: the tensors may be leaves.
void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

C10dBuffer movable_buffer(const at::Tensor& tensor, std::string_view op) {
  check_place(tensor, op);
  if (is_known(tensor.scalar_type())) return {buffer_of(tensor, op), 1};
  const int64_t scale = tensor.element_size();
  void* data = tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
  return {Buffer{data, tensor.numel() * scale, Dtype::uint8, {}}, scale};
}

Buffer reducible_buffer(const at::Tensor& tensor, std::string_view op) {
  check_place(tensor, op);
  return buffer_of(tensor, op);
}

std::vector<int64_t> counts_of(const std::vector<at::Tensor>& list, std::string_view op) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : list) {
    check_place(tensor, op);
    if (tensor.scalar_type() != list.front().scalar_type()) {
      throw ShapeError(
          {.op = std::string(op),
           .fact = fmt::format("the list has tensors of {} and of {}", c10::toString(list.front().scalar_type()),
                               c10::toString(tensor.scalar_type())),
           .action = "give tensors of one dtype"});
    }
    counts.push_back(tensor.numel());
  }
  return counts;
}

FlatList flat_of(const std::vector<at::Tensor>& list, std::string_view op) {
  const std::vector<int64_t> counts = counts_of(list, op);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const at::Tensor& first = list.front();
  int64_t next = first.storage_offset();
  bool is_one = true;
  for (const at::Tensor& tensor : list) {
    is_one = is_one && tensor.is_alias_of(first) && tensor.storage_offset() == next;
    next += tensor.numel();
  }
  const at::NoGradGuard no_grad;
  if (is_one) return {first.as_strided({total}, {1}), false};
  return {at::empty({total}, first.options()), true};
}

void copy_in(const FlatList& flat, const std::vector<at::Tensor>& list) {
  size_t begin = 0;
  for (const at::Tensor& tensor : list) {
    if (flat.is_copy) copy_bytes(bytes_at(flat, begin), tensor.const_data_ptr(), tensor.nbytes());
    begin += tensor.nbytes();
  }
}

void copy_out(const FlatList& flat, const std::vector<at::Tensor>& list) {
  size_t begin = 0;
  for (const at::Tensor& tensor : list) {
    if (flat.is_copy) copy_bytes(tensor.mutable_data_ptr(), bytes_at(flat, begin), tensor.nbytes());
    begin += tensor.nbytes();
  }
}

}  // namespace caravan
