#include "caravan/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory_counter.h"
#include "caravan/comm/checks.h"
#include "caravan/comm/operations.h"

namespace caravan {
namespace {

int64_t bytes_of(const ConstBuffer& buffer) { return buffer.count * size_bytes(buffer.dtype); }

void copy_in_to_out(const Operation& operation) {
  if (operation.verb == Verb::broadcast || operation.verb == Verb::barrier || operation.out.count == 0) return;
  if (operation.in.data == operation.out.data) return;
  std::memcpy(operation.out.data, operation.in.data, static_cast<size_t>(bytes_of(operation.out)));
}

}  // namespace

Communicator::Communicator(int rank, int size, std::string name)
    : rank_(rank), size_(size), name_(std::move(name)), next_send_(size), next_recv_(size) {}

Communicator::~Communicator() = default;

bool Communicator::takes(const Device& device, const Stream& stream) const noexcept {
  return device.kind == DeviceKind::cpu && stream.handle == nullptr;
}

Work Communicator::all_reduce_async(ConstBuffer in, Buffer out, ReduceOp op, const Call& call, Stream stream) {
  return issue(all_reduce_operation(in, out, op, call, stream));
}

Work Communicator::all_gather_async(ConstBuffer in, Buffer out, std::span<const int64_t> counts, const Call& call,
                                    Stream stream) {
  return issue(all_gather_operation(in, out, counts, size_, call, stream));
}

Work Communicator::reduce_scatter_async(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts,
                                        const Call& call, Stream stream) {
  return issue(reduce_scatter_operation(in, out, op, counts, size_, call, stream));
}

Work Communicator::all_to_all_async(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                                    std::span<const int64_t> recv_counts, const Call& call, Stream stream) {
  return issue(all_to_all_operation(in, out, send_counts, recv_counts, size_, call, stream));
}

Work Communicator::broadcast_async(Buffer buffer, int root, const Call& call, Stream stream) {
  return issue(broadcast_operation(buffer, root, call, stream));
}

Work Communicator::reduce_async(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call, Stream stream) {
  return issue(reduce_operation(in, out, op, root, rank_, call, stream));
}

Work Communicator::send_async(ConstBuffer in, int peer, const Call& call, Stream stream) {
  return issue(send_operation(in, peer, call, stream));
}

Work Communicator::recv_async(Buffer out, int peer, const Call& call, Stream stream) {
  return issue(recv_operation(out, peer, call, stream));
}

Work Communicator::barrier_async(const Call& call) { return issue(barrier_operation(call)); }

void Communicator::all_reduce(ConstBuffer in, Buffer out, ReduceOp op, const Call& call, Stream stream) {
  all_reduce_async(in, out, op, call, stream).wait();
}

void Communicator::all_gather(ConstBuffer in, Buffer out, std::span<const int64_t> counts, const Call& call,
                              Stream stream) {
  all_gather_async(in, out, counts, call, stream).wait();
}

void Communicator::reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts,
                                  const Call& call, Stream stream) {
  reduce_scatter_async(in, out, op, counts, call, stream).wait();
}

void Communicator::all_to_all(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                              std::span<const int64_t> recv_counts, const Call& call, Stream stream) {
  all_to_all_async(in, out, send_counts, recv_counts, call, stream).wait();
}

void Communicator::broadcast(Buffer buffer, int root, const Call& call, Stream stream) {
  broadcast_async(buffer, root, call, stream).wait();
}

void Communicator::reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call, Stream stream) {
  reduce_async(in, out, op, root, call, stream).wait();
}

void Communicator::send(ConstBuffer in, int peer, const Call& call, Stream stream) {
  send_async(in, peer, call, stream).wait();
}

void Communicator::recv(Buffer out, int peer, const Call& call, Stream stream) {
  recv_async(out, peer, call, stream).wait();
}

void Communicator::barrier(const Call& call) { barrier_async(call).wait(); }

std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  void* memory = std::aligned_alloc(kAlign, rounded);
  if (memory == nullptr) {
    throw ResourceError({.op = "allocate",
                         .subject = name_,
                         .fact = fmt::format("no memory for a buffer of {} bytes", bytes),
                         .action = "use smaller buffers, or more ranks that share them"});
  }
  std::memset(memory, 0, rounded);
  MemoryCounter* counter = &MemoryCounter::current();
  counter->add(static_cast<int64_t>(rounded));
  return {memory, [counter, rounded](void* block) {
            counter->remove(static_cast<int64_t>(rounded));
            std::free(block);
          }};
}

void Communicator::check(const Operation& operation) const {
  const CheckedGroup group{rank_, size_, name_, backend(), touches_memory()};
  check_operation(operation, group);
  for (const Device& device : {operation.in.device, operation.out.device}) {
    if (takes(device, operation.stream)) continue;
    throw UsageError({.op = std::string(caravan::name(operation.verb)),
                      .subject = operation.what.data(),
                      .fact = fmt::format("the back-end {} takes host memory and no stream", backend()),
                      .where = where_text(group, operation.where),
                      .action = "copy the data to the host first"});
  }
}

void Communicator::count_traffic(const Operation& operation) {
  const size_t verb = static_cast<size_t>(operation.verb);
  int64_t own = 0;
  if (operation.verb == Verb::reduce_scatter || operation.verb == Verb::all_to_all) {
    own = operation.send_counts[static_cast<size_t>(rank_)] * size_bytes(operation.dtype);
  }
  ++traffic_.calls[verb];
  traffic_.bytes[verb] += wire_bytes(operation.verb, rank_, size_, bytes_of(operation.in), own, operation.root);
}

Work Communicator::issue(Operation operation) {
  check(operation);
  if (size_ == 1) {
    if (touches_memory()) copy_in_to_out(operation);
    count_traffic(operation);
    return {};
  }
  const bool sends = operation.verb == Verb::send;
  const bool receives = operation.verb == Verb::recv;
  uint64_t& next = sends      ? next_send_[static_cast<size_t>(operation.peer)]
                   : receives ? next_recv_[static_cast<size_t>(operation.peer)]
                              : next_collective_;
  operation.sequence = next;
  auto shared = std::make_shared<Operation>(std::move(operation));
  start(shared);
  ++next;
  count_traffic(*shared);
  return {shared, this};
}

void Communicator::wait(Operation& operation) {
  struct Timer {
    double& total_ms;
    std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    ~Timer() {
      total_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    }
  };
  const Timer timer{traffic_.wait_ms};
  finish(operation);
}

}  // namespace caravan
