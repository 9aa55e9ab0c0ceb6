#include "caravan/comm/tensor.h"

#include <array>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr std::array<std::pair<at::ScalarType, Dtype>, kNumDtypes> kTypes{{{at::kFloat, Dtype::fp32},
                                                                           {at::kDouble, Dtype::fp64},
                                                                           {at::kBFloat16, Dtype::bf16},
                                                                           {at::kHalf, Dtype::fp16},
                                                                           {at::kLong, Dtype::int64},
                                                                           {at::kInt, Dtype::int32},
                                                                           {at::kByte, Dtype::uint8},
                                                                           {at::kBool, Dtype::boolean}}};

Device device_of(const at::Tensor& tensor, std::string_view what) {
  const at::Device device = tensor.device();
  if (device.is_cuda()) return {DeviceKind::cuda, device.index()};
  if (device.is_cpu() || device.is_meta()) return {};
  throw UsageError({.op = "communicator",
                    .subject = std::string(what),
                    .fact = fmt::format("the tensor is on {}", device.str()),
                    .action = "move it to the host or to a CUDA device"});
}

/// The operation holds the tensors, so that the caller may drop its own.
Work with(Work work, std::initializer_list<at::Tensor> tensors) {
  work.keep(std::make_shared<std::vector<at::Tensor>>(tensors));
  return work;
}

}  // namespace

Dtype to_dtype(at::ScalarType type) {
  for (const auto& [scalar_type, dtype] : kTypes) {
    if (scalar_type == type) return dtype;
  }
  throw UsageError({.op = "communicator",
                    .fact = fmt::format("no communicator takes the dtype {}", c10::toString(type)),
                    .action = "choose one of fp32, fp64, bf16, fp16, int64, int32, uint8 and bool"});
}

at::ScalarType to_scalar_type(Dtype dtype) {
  for (const auto& [scalar_type, own] : kTypes) {
    if (own == dtype) return scalar_type;
  }
  throw InternalError({.op = "to_scalar_type", .fact = fmt::format("no dtype {}", static_cast<int>(dtype))});
}

Buffer buffer_of(const at::Tensor& tensor, std::string_view what) {
  const auto refuse = [&](std::string fact, std::string action) {
    throw ShapeError(
        {.op = "communicator", .subject = std::string(what), .fact = std::move(fact), .action = std::move(action)});
  };
  if (!tensor.defined()) refuse("the tensor is undefined", "pass a tensor, of no elements if there is nothing to send");
  if (tensor.layout() != at::kStrided) refuse("the tensor is sparse", "call to_dense()");
  if (!tensor.is_contiguous()) {
    refuse(fmt::format("the tensor [{}] with strides [{}] is not contiguous", join(tensor.sizes()),
                       join(tensor.strides())),
           "call contiguous()");
  }
  void* data = tensor.is_meta() || tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
  return {data, tensor.numel(), to_dtype(tensor.scalar_type()), device_of(tensor, what)};
}

Work all_reduce_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op, const Call& call) {
  return with(comm.all_reduce_async(buffer_of(in, call.what), buffer_of(out, call.what), op, call), {in, out});
}

Work all_gather_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, std::span<const int64_t> counts,
                      const Call& call) {
  return with(comm.all_gather_async(buffer_of(in, call.what), buffer_of(out, call.what), counts, call), {in, out});
}

Work reduce_scatter_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op,
                          std::span<const int64_t> counts, const Call& call) {
  return with(comm.reduce_scatter_async(buffer_of(in, call.what), buffer_of(out, call.what), op, counts, call),
              {in, out});
}

Work all_to_all_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out,
                      std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts, const Call& call) {
  return with(
      comm.all_to_all_async(buffer_of(in, call.what), buffer_of(out, call.what), send_counts, recv_counts, call),
      {in, out});
}

Work broadcast_async(Communicator& comm, const at::Tensor& tensor, int root, const Call& call) {
  return with(comm.broadcast_async(buffer_of(tensor, call.what), root, call), {tensor});
}

Work reduce_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op, int root,
                  const Call& call) {
  // Only the root has a result: elsewhere `out` may be an undefined tensor.
  const Buffer to = comm.rank() == root ? buffer_of(out, call.what) : Buffer{};
  return with(comm.reduce_async(buffer_of(in, call.what), to, op, root, call), {in, out});
}

Work send_async(Communicator& comm, const at::Tensor& in, int peer, const Call& call) {
  return with(comm.send_async(buffer_of(in, call.what), peer, call), {in});
}

Work recv_async(Communicator& comm, const at::Tensor& out, int peer, const Call& call) {
  return with(comm.recv_async(buffer_of(out, call.what), peer, call), {out});
}

namespace {

/// A meta tensor; `bytes` are charged to this rank.
at::Tensor without_memory(int64_t count, at::ScalarType type, int64_t bytes) {
  const auto release = [charge = MemoryCharge::take(bytes)](void*) { charge.release(); };
  return at::from_blob(nullptr, {count}, release, at::TensorOptions(type).device(at::kMeta), at::kMeta);
}

at::Tensor allocate_with(std::shared_ptr<void> (Communicator::*allocate)(size_t), Communicator& comm, int64_t count,
                         at::ScalarType type, at::Device device) {
  const int64_t element_bytes = size_bytes(to_dtype(type));
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / element_bytes) {
    throw ShapeError({.op = "allocate_flat",
                      .subject = comm.name(),
                      .fact = fmt::format("there is no buffer of {} elements", count),
                      .action = "give 0 or more elements"});
  }
  if (device.is_meta()) {
    const bool is_part = allocate == &Communicator::allocate_shared && comm.shares_memory();
    return without_memory(count, type, count * element_bytes / (is_part ? comm.size() : 1));
  }
  std::shared_ptr<void> memory = (comm.*allocate)(static_cast<size_t>(count * element_bytes));
  void* data = memory.get();
  return at::from_blob(
      data, {count}, [memory = std::move(memory)](void*) mutable { memory.reset(); }, at::TensorOptions(type));
}

}  // namespace

at::Tensor allocate_flat(Communicator& comm, int64_t count, at::ScalarType type, at::Device device) {
  return allocate_with(&Communicator::allocate, comm, count, type, device);
}

at::Tensor allocate_flat_shared(Communicator& comm, int64_t count, at::ScalarType type, at::Device device) {
  return allocate_with(&Communicator::allocate_shared, comm, count, type, device);
}

}  // namespace caravan
