#include "caravan/comm/algorithms/run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "caravan/comm/reduce/reduce.h"

namespace caravan::algorithms {
namespace {

Range hull_of(Range a, Range b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const int64_t begin = std::min(a.begin, b.begin);
  return {begin, std::max(a.end(), b.end()) - begin};
}

bool overlap(Range a, Range b) { return a.begin < b.end() && b.begin < a.end(); }

/// All elements that the steps write, and the ranges of sends that may read them together with others.
Range touched(std::span<const Step> steps, bool all_sends) {
  Range hull;
  for (const Step& step : steps) {
    for (const Move& move : step.recvs) hull = hull_of(hull, move.range);
  }
  const Range received = hull;
  for (const Step& step : steps) {
    for (const Move& move : step.sends) {
      if (all_sends || overlap(received, move.range)) hull = hull_of(hull, move.range);
    }
  }
  return hull;
}

}  // namespace

Run::Run(MessagePlan plan, const Operation& operation, int rank, int size, bool touches_memory)
    : plan_(std::move(plan)), out_(operation.out), op_(operation.op), rank_(rank), touches_memory_(touches_memory) {
  const Frame frame = frame_of(problem_of(operation, rank, size));
  ConstBuffer in = operation.in;
  in.dtype = operation.dtype;  // that of an empty buffer may differ
  result_ = frame.result;
  std::span<const Step> steps = plan_.steps;
  const Dtype partial = partial_dtype(in.dtype, op_);
  WorkingBuffer::Memory memory{.dtype = in.dtype, .hull = {}, .exists = touches_memory};
  if (partial != in.dtype && plan_.num_partial_steps > 0) {
    const auto first = steps.first(plan_.num_partial_steps);
    wide_.emplace(WorkingBuffer::Memory{.dtype = partial, .hull = touched(first, true), .exists = touches_memory}, in,
                  frame.input.begin);
    steps = steps.subspan(plan_.num_partial_steps);
    memory.below = &*wide_;
  }
  memory.hull = hull_of(touched(steps, memory.below != nullptr), result_);
  if (memory.hull == result_ && result_.count > 0) memory.place = static_cast<std::byte*>(out_.data);
  narrow_.emplace(memory, in, frame.input.begin);
}

void Run::finish(Port& port) {
  while (begin_step(port)) {
    port.finish();
    end_step();
  }
}

bool Run::advance(Port& port) {
  while (begin_step(port)) {
    if (!port.is_done()) return false;
    port.finish();
    end_step();
  }
  return true;
}

bool Run::begin_step(Port& port) {
  if (is_in_flight_) return true;
  while (next_ < plan_.steps.size() && plan_.steps[next_].empty()) ++next_;
  if (next_ == plan_.steps.size()) {
    deliver();
    return false;
  }
  is_in_flight_ = true;
  post(port, plan_.steps[next_]);
  return true;
}

void Run::end_step() {
  if (touches_memory_) add_received(plan_.steps[next_]);
  is_in_flight_ = false;
  ++next_;
}

void Run::post(Port& port, const Step& step) {
  WorkingBuffer& working = this->working();
  const Dtype dtype = working.dtype();
  const int64_t each = size_bytes(dtype);
  int64_t bytes = 0;
  for (const Move& move : step.recvs) bytes += move.adds ? move.range.count * each : 0;
  if (bytes > received_bytes_ && touches_memory_) {
    received_ = new_elements(bytes, Dtype::uint8);
    received_bytes_ = bytes;
  }
  copy_own(step);
  std::byte* next = received_.get();
  for (const Move& move : step.recvs) {
    if (move.peer == rank_) continue;
    if (!move.adds) {
      port.recv(move.peer, working.write(move.range));
      continue;
    }
    port.recv(move.peer, {next, move.range.count, dtype, {}});
    if (touches_memory_) next += move.range.count * each;
  }
  for (const Move& move : step.sends) {
    if (move.peer != rank_) port.send(move.peer, working.read(move.range));
  }
}

/// The n-th range that this rank sends to itself is copied to the n-th that it receives from itself.
void Run::copy_own(const Step& step) {
  auto to = step.recvs.begin();
  for (const Move& from : step.sends) {
    if (from.peer != rank_) continue;
    to = std::find_if(to, step.recvs.end(), [&](const Move& move) { return move.peer == rank_; });
    const ConstBuffer source = working().read(from.range);
    const Buffer target = working().write(to->range);
    ++to;
    if (!touches_memory_) continue;
    convert(static_cast<const std::byte*>(source.data), source.dtype, static_cast<std::byte*>(target.data),
            target.dtype, source.count);
  }
}

void Run::add_received(const Step& step) {
  struct Received {
    Range range;
    int peer;
    const std::byte* data;
  };
  WorkingBuffer& working = this->working();
  std::vector<Received> all;
  const std::byte* next = received_.get();
  for (const Move& move : step.recvs) {
    if (!move.adds) continue;
    all.push_back({move.range, move.peer, next});
    next += move.range.count * size_bytes(working.dtype());
  }
  std::ranges::sort(all, {}, [](const Received& one) { return std::pair(one.range.begin, one.peer); });
  for (auto first = all.begin(); first != all.end();) {
    const Range range = first->range;
    const auto end = std::find_if(first, all.end(), [&](const Received& one) { return one.range != range; });
    std::vector<const std::byte*> sources;
    const auto own_place = std::find_if(first, end, [&](const Received& one) { return one.peer > rank_; });
    for (auto one = first; one != own_place; ++one) sources.push_back(one->data);
    sources.push_back(static_cast<const std::byte*>(working.read(range).data));
    for (auto one = own_place; one != end; ++one) sources.push_back(one->data);
    std::byte* sum = static_cast<std::byte*>(working.write(range).data);
    shared::reduce_in_order(op_, working.dtype(), sources, range.count, sum);
    first = end;
  }
}

void Run::deliver() {
  if (std::exchange(is_delivered_, true) || !touches_memory_ || result_.count == 0) return;
  const ConstBuffer result = narrow_->read(result_);
  convert(static_cast<const std::byte*>(result.data), result.dtype, static_cast<std::byte*>(out_.data), result.dtype,
          result.count);
}

}  // namespace caravan::algorithms
