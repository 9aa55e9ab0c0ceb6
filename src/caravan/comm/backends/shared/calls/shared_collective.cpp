#include "caravan/comm/backends/shared/calls/shared_collective.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "caravan/comm/backends/shared/calls/compare_calls.h"
#include "caravan/comm/operations.h"
#include "caravan/comm/reduce/reduce.h"

namespace caravan::shared {
namespace {

// Below this, staging through the cache is faster than working in place: it takes one round less.
constexpr int64_t kDirectBytes = 1024;
// Above this, more than two ranks reduce a share each and exchange the results, instead of each reducing everything.
constexpr int64_t kPairedBytes = 16 * 1024;

constexpr uint64_t kEmptyBuffer = 1;  // the offset of an empty buffer, which nobody accesses

uint64_t offset_of(const Segment& segment, const ConstBuffer& buffer) noexcept {
  if (buffer.count == 0) return kEmptyBuffer;
  return segment.offset_of(buffer.data, static_cast<size_t>(buffer.count * size_bytes(buffer.dtype)));
}

bool counts_match(const Region& region, int size, uint64_t round) {
  for (int from = 0; from < size; ++from) {
    const auto sent = region.send_counts(from, round);
    for (int to = 0; to < size; ++to) {
      if (sent[static_cast<size_t>(to)] != region.recv_counts(to, round)[static_cast<size_t>(from)]) return false;
    }
  }
  return true;
}

}  // namespace

SharedCollective::SharedCollective(RankState& state, Operation& operation)
    : Rounds(state, operation),
      element_bytes_(size_bytes(operation.dtype)),
      element_shift_(std::countr_zero(static_cast<uint64_t>(element_bytes_))) {}

bool SharedCollective::fits_payload() const noexcept {
  const Operation& op = operation();
  if (op.verb == Verb::barrier) return true;
  if (op.verb == Verb::all_to_all) return false;
  int64_t elems = op.in.count;
  if (op.verb == Verb::all_gather) elems = std::ranges::max(op.recv_counts);
  return elems * element_bytes_ <= static_cast<int64_t>(LineData::kPayloadBytes);
}

void SharedCollective::write_call(uint64_t round) {
  const Operation& op = operation();
  own_.call = call_signature(op);
  own_.size = size_signature(op);
  if (op.verb == Verb::all_to_all) {  // peers need them to read their parts
    std::ranges::copy(op.send_counts, state_.region.send_counts(state_.rank, round).begin());
    std::ranges::copy(op.recv_counts, state_.region.recv_counts(state_.rank, round).begin());
  }
  if (std::max(op.in.count, op.out.count) * element_bytes_ < kDirectBytes) return;
  own_.in = offset_of(*state_.segment, op.in);
  own_.out = offset_of(*state_.segment, op.out);
  // An all_reduce accesses both buffers in place or neither.
  if (op.verb == Verb::all_reduce && own_.out == 0) own_.in = 0;
}

void SharedCollective::write(uint64_t round, int64_t step) {
  if (step > 0) {
    if (path_ != Path::direct) write_staged(round, step - first_step_);
    return;
  }
  write_call(round);
  const Operation& op = operation();
  if (!fits_payload()) {
    if (own_.in == 0) write_staged(round, 0);
  } else if (op.in.count > 0 && (op.verb != Verb::broadcast || op.root == state_.rank)) {
    std::memcpy(own_.payload.data(), op.in.data, static_cast<size_t>(op.in.count * element_bytes_));
  }
}

Rounds::Next SharedCollective::read(uint64_t round, int64_t step) {
  if (step == 0 && cursor_ == 0 && peer_ == 0) {
    path_ = choose(round);
    if (path_ == Path::payload) {
      read_payloads(round);
      return Next::end;
    }
    if (path_ != Path::direct) num_steps_ = count_steps(round);
    // A rank whose buffers lie in an arena has staged nothing in this round.
    bool any_in_arena = false;
    for (int rank = 0; rank < state_.size; ++rank) any_in_arena |= data_of(rank, round).in != 0;
    if (path_ != Path::direct && any_in_arena) {
      first_step_ = 1;
      return Next::round;
    }
  }
  if (path_ == Path::direct) return step == 0 ? move_directly(round) : Next::end;
  return read_staged(round, step - first_step_) ? Next::end : Next::round;
}

bool SharedCollective::calls_match(uint64_t round) const {
  if (!Rounds::calls_match(round)) return false;
  return operation().verb != Verb::all_to_all || counts_match(state_.region, state_.size, round);
}

SharedCollective::Path SharedCollective::choose(uint64_t round) const {
  const Operation& op = operation();
  if (fits_payload()) return Path::payload;
  bool all_in_arena = true;
  for (int rank = 0; rank < state_.size; ++rank) all_in_arena &= data_of(rank, round).in != 0;
  if (op.verb == Verb::broadcast) all_in_arena = data_of(op.root, round).in != 0;
  if (all_in_arena) return Path::direct;
  const bool is_long = op.in.count * element_bytes_ > kPairedBytes;
  return op.verb == Verb::all_reduce && state_.size > 2 && is_long ? Path::paired : Path::staged;
}

void SharedCollective::collect_payloads(uint64_t round) const {
  std::vector<const std::byte*>& sources = state_.sources;
  sources.clear();
  for (int rank = 0; rank < state_.size; ++rank) sources.push_back(data_of(rank, round).payload.data());
}

void SharedCollective::read_payloads(uint64_t round) const {
  const Operation& op = operation();
  auto* out = static_cast<std::byte*>(op.out.data);
  if (op.in.count == 0 && op.verb != Verb::all_gather) return;
  switch (op.verb) {
    case Verb::reduce:
      if (state_.rank != op.root) return;
      [[fallthrough]];
    case Verb::all_reduce:
      collect_payloads(round);
      return reduce_in_order(op.op, op.dtype, state_.sources, op.in.count, out);
    case Verb::broadcast:
      std::memcpy(out, data_of(op.root, round).payload.data(), static_cast<size_t>(op.in.count * element_bytes_));
      return;
    case Verb::all_gather:
      for (int rank = 0; rank < state_.size; ++rank) {
        const auto bytes = static_cast<size_t>(op.recv_counts[static_cast<size_t>(rank)] * element_bytes_);
        if (bytes > 0) std::memcpy(out, data_of(rank, round).payload.data(), bytes);
        out += bytes;
      }
      return;
    case Verb::reduce_scatter: {
      const int64_t begin = part_begin(op.send_counts, state_.rank);
      if (op.out.count == 0) return;
      collect_payloads(round);
      for (const std::byte*& source : state_.sources) source += begin * element_bytes_;
      return reduce_in_order(op.op, op.dtype, state_.sources, op.out.count, out);
    }
    case Verb::all_to_all:
    case Verb::send:
    case Verb::recv:
    case Verb::barrier: return;
  }
}

}  // namespace caravan::shared
