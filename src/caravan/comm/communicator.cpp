#include "caravan/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/comm/calls/checks.h"
#include "caravan/comm/operations.h"

namespace caravan {
namespace {

int64_t bytes_of(const ConstBuffer& buffer) noexcept { return buffer.count * size_bytes(buffer.dtype); }

std::string span_name(const Operation& operation) {
  const std::string_view verb = name(operation.verb);
  return operation.what[0] == '\0' ? std::string(verb) : fmt::format("{} {}", verb, operation.what.data());
}

}  // namespace

Communicator::Communicator(int rank, int size, std::string name, Lineage lineage)
    : rank_(rank),
      size_(size),
      name_(std::move(name)),
      lineage_(std::move(lineage)),
      next_send_(static_cast<size_t>(size)),
      next_recv_(static_cast<size_t>(size)) {
  if (lineage_.recorder == nullptr) lineage_.recorder = std::make_shared<FlightRecorder>();
  group_ = {.identity = lineage_.identity, .rank = rank, .size = size};
  name_.copy(group_.name.data(), group_.name.size() - 1);
}

Lineage Communicator::child_lineage(uint64_t sequence, int first) const noexcept {
  // The finaliser of splitmix64: children of one parent, and of different ones, differ.
  uint64_t mixed = lineage_.identity * 0x9e3779b97f4a7c15ULL + (sequence << 20) + static_cast<uint64_t>(first) + 1;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebULL;
  return {mixed ^ mixed >> 31, lineage_.recorder};
}

Communicator::~Communicator() = default;

const FlightLog* Communicator::flight_of(int rank) const noexcept {
  return rank == rank_ ? &lineage_.recorder->log() : nullptr;
}

bool Communicator::takes(const Device& device, const Stream& stream) const noexcept {
  return device.kind == DeviceKind::cpu && stream.handle == nullptr;
}

void Communicator::copy_alone(const Operation& operation) const {
  if (operation.verb == Verb::broadcast || operation.verb == Verb::barrier || operation.out.count == 0) return;
  if (operation.in.data == operation.out.data) return;
  std::memcpy(operation.out.data, operation.in.data, static_cast<size_t>(bytes_of(operation.out)));
}

void Communicator::all_reduce(ConstBuffer in, Buffer out, ReduceOp op, const Call& call, Stream stream) {
  run(all_reduce_operation(in, out, op, call, stream));
}
Work Communicator::all_reduce_async(ConstBuffer in, Buffer out, ReduceOp op, const Call& call, Stream stream) {
  return issue(all_reduce_operation(in, out, op, call, stream));
}

void Communicator::all_gather(ConstBuffer in, Buffer out, std::span<const int64_t> counts, const Call& call,
                              Stream stream) {
  run(all_gather_operation(in, out, counts, size_, call, stream));
}
Work Communicator::all_gather_async(ConstBuffer in, Buffer out, std::span<const int64_t> counts, const Call& call,
                                    Stream stream) {
  return issue(all_gather_operation(in, out, counts, size_, call, stream));
}

void Communicator::reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts,
                                  const Call& call, Stream stream) {
  run(reduce_scatter_operation(in, out, op, counts, size_, call, stream));
}
Work Communicator::reduce_scatter_async(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts,
                                        const Call& call, Stream stream) {
  return issue(reduce_scatter_operation(in, out, op, counts, size_, call, stream));
}

void Communicator::all_to_all(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                              std::span<const int64_t> recv_counts, const Call& call, Stream stream) {
  run(all_to_all_operation(in, out, send_counts, recv_counts, size_, call, stream));
}
Work Communicator::all_to_all_async(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                                    std::span<const int64_t> recv_counts, const Call& call, Stream stream) {
  return issue(all_to_all_operation(in, out, send_counts, recv_counts, size_, call, stream));
}

void Communicator::broadcast(Buffer buffer, int root, const Call& call, Stream stream) {
  run(broadcast_operation(buffer, root, call, stream));
}
Work Communicator::broadcast_async(Buffer buffer, int root, const Call& call, Stream stream) {
  return issue(broadcast_operation(buffer, root, call, stream));
}

void Communicator::reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call, Stream stream) {
  run(reduce_operation(in, rank_ == root ? out : Buffer{}, op, root, call, stream));
}
Work Communicator::reduce_async(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call, Stream stream) {
  return issue(reduce_operation(in, rank_ == root ? out : Buffer{}, op, root, call, stream));
}

void Communicator::send(ConstBuffer in, int peer, const Call& call, Stream stream) {
  run(message_operation(Verb::send, in, {}, peer, call, stream));
}
Work Communicator::send_async(ConstBuffer in, int peer, const Call& call, Stream stream) {
  return issue(message_operation(Verb::send, in, {}, peer, call, stream));
}

void Communicator::recv(Buffer out, int peer, const Call& call, Stream stream) {
  run(message_operation(Verb::recv, {}, out, peer, call, stream));
}
Work Communicator::recv_async(Buffer out, int peer, const Call& call, Stream stream) {
  return issue(message_operation(Verb::recv, {}, out, peer, call, stream));
}

void Communicator::barrier(const Call& call) { run(barrier_operation(call)); }
Work Communicator::barrier_async(const Call& call) { return issue(barrier_operation(call)); }

std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const MemoryCharge charge = MemoryCharge::take(static_cast<int64_t>(bytes));
  void* memory = std::aligned_alloc(kAlign, rounded);
  if (memory == nullptr) {
    charge.release();
    throw ResourceError({.op = "allocate",
                         .subject = name_,
                         .fact = fmt::format("no memory for a buffer of {} bytes", bytes),
                         .action = "use smaller buffers, or more ranks that share them"});
  }
  std::memset(memory, 0, rounded);
  return {memory, [charge](void* block) {
            charge.release();
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

int64_t Communicator::sent_bytes(const Operation& operation) const noexcept {
  int64_t own = 0;
  if (operation.verb == Verb::reduce_scatter || operation.verb == Verb::all_to_all) {
    own = operation.send_counts[static_cast<size_t>(rank_)] * size_bytes(operation.dtype);
  }
  return wire_bytes(operation.verb, rank_, size_, bytes_of(operation.in), own, operation.root);
}

void Communicator::count_traffic(const Operation& operation) {
  const size_t verb = static_cast<size_t>(operation.verb);
  ++traffic_.calls[verb];
  traffic_.bytes[verb] += sent_bytes(operation);
}

/// A communicator that is built on others has a row with its name and own back-end, and they have theirs.
void Communicator::begin_span(Operation& operation, TraceLog& trace) const {
  TraceLog::Args args{{"bytes", describe(operation).count * size_bytes(operation.dtype)},
                      {"sent_bytes", sent_bytes(operation)}};
  if (operation.peer >= 0) args.emplace_back("peer", operation.peer);
  if (operation.root >= 0) args.emplace_back("root", operation.root);
  operation.trace = trace.shared_from_this();
  operation.trace_span =
      trace.begin(fmt::format("{} over {}", name_, backend()), span_name(operation), std::move(args));
}

uint64_t& Communicator::counter_of(const Operation& operation) noexcept {
  if (operation.verb == Verb::send) return next_send_[static_cast<size_t>(operation.peer)];
  if (operation.verb == Verb::recv) return next_recv_[static_cast<size_t>(operation.peer)];
  return next_collective_;
}

bool Communicator::prepare(Operation& operation) {
  check(operation);
  if (size_ == 1) {
    count_traffic(operation);
    if (touches_memory()) copy_alone(operation);
    return false;
  }
  operation.sequence = counter_of(operation)++;
  if (TraceLog* trace = TraceLog::current()) begin_span(operation, *trace);
  const bool has_result = operation.verb != Verb::send && operation.verb != Verb::barrier;
  if (has_result && PathLog::current() != nullptr) {
    operation.take_path(
        fmt::format("{} {} {}", backend(), caravan::name(operation.verb), caravan::name(operation.dtype)));
  }
  return true;
}

void Communicator::note(Operation& operation) noexcept {
  if (operation.flight != nullptr) return;
  count_traffic(operation);
  operation.flight = &lineage_.recorder->log();
  operation.flight_number = record(describe(operation));
  if (!operation.complete) return;
  operation.flight->end(operation.flight_number, operation.error == nullptr ? FlightState::done : FlightState::failed);
}

Work Communicator::issue(Operation operation) {
  if (!prepare(operation)) return {};
  note(operation);
  auto shared = std::make_shared<Operation>(std::move(operation));
  try {
    start(shared);
  } catch (const std::exception& error) {
    shared->set_complete(std::current_exception());
    lineage_.recorder->failed(error.what());
    throw;
  }
  return {shared, this};
}

void Communicator::run(Operation operation) {
  if (!prepare(operation)) return;
  if (!execute_notes()) note(operation);
  try {
    execute(operation);
  } catch (const std::exception& error) {
    if (!operation.complete) operation.set_complete(std::current_exception());
    lineage_.recorder->failed(error.what());
    throw;
  }
}

void Communicator::execute(Operation& operation) {
  const auto shared = std::make_shared<Operation>(operation);
  start(shared);
  operation.complete = true;  // the shared one ends from here on
  wait(*shared);
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
  const TraceSpan span(TraceLog::kWait, caravan::name(operation.verb), operation.what.data());
  try {
    finish(operation);
  } catch (const std::exception& error) {
    lineage_.recorder->failed(error.what());
    throw;
  }
}

}  // namespace caravan
