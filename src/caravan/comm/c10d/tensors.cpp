#include "caravan/comm/c10d/tensors.h"

#include <cstring>
#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

void check_device(const at::Tensor& tensor, std::string_view op) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) buffer_of(tensor, op);  // reports what is wrong
  if (tensor.is_cpu()) return;
  throw UsageError(
      {.op = std::string(op),
       .fact = fmt::format("the tensor is on {}; the back-end takes host memory only", tensor.device().str()),
       .action = "give the process group a back-end for each device, as in \"cpu:caravan,cuda:nccl\""});
}

}  // namespace

std::optional<Dtype> find_dtype(at::ScalarType type) noexcept {
  try {
    return to_dtype(type);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

C10dBuffer movable_buffer(const at::Tensor& tensor, std::string_view op) {
  check_device(tensor, op);
  if (!tensor.is_contiguous() || find_dtype(tensor.scalar_type())) return {buffer_of(tensor, op), 1};
  const int64_t scale = tensor.element_size();
  void* data = tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
  return {Buffer{data, tensor.numel() * scale, Dtype::uint8, {}}, scale};
}

at::Tensor contiguous_of(const at::Tensor& tensor, std::string_view op) {
  check_device(tensor, op);
  const at::NoGradGuard no_grad;
  return tensor.contiguous();
}

void copy_to(const at::Tensor& tensor, const at::Tensor& memory) {
  if (tensor.is_same(memory) || tensor.numel() == 0) return;
  if (tensor.is_contiguous()) {
    std::memcpy(tensor.mutable_data_ptr(), memory.const_data_ptr(), tensor.nbytes());
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  tensor.copy_(memory.view(tensor.sizes()));
}

std::vector<int64_t> counts_of(const std::vector<at::Tensor>& list, std::string_view op) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : list) {
    check_device(tensor, op);
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
    is_one = is_one && tensor.is_contiguous() && tensor.is_alias_of(first) && tensor.storage_offset() == next;
    next += tensor.numel();
  }
  const at::NoGradGuard no_grad;
  if (is_one) return {first.as_strided({total}, {1}), false};
  return {at::empty({total}, first.options()), true};
}

void copy_in(const FlatList& flat, const std::vector<at::Tensor>& list) {
  if (!flat.is_copy) return;
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    copy_to(flat.flat.narrow(0, begin, tensor.numel()), tensor.contiguous());
    begin += tensor.numel();
  }
}

void copy_out(const FlatList& flat, const std::vector<at::Tensor>& list) {
  if (!flat.is_copy) return;
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    copy_to(tensor, flat.flat.narrow(0, begin, tensor.numel()));
    begin += tensor.numel();
  }
}

}  // namespace caravan
