#include <algorithm>
#include <cstring>

#include "caravan/comm/backends/shared/calls/shared_collective.h"
#include "caravan/comm/operations.h"
#include "caravan/comm/reduce/reduce.h"

namespace caravan::shared {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;      // at a time, so that other operations make progress
constexpr int64_t kPopulateBytes = int64_t{64} << 10;  // smaller ranges are mapped by page faults

}  // namespace

std::byte* SharedCollective::reach(uint64_t offset, int64_t begin_bytes, int64_t bytes) const {
  if (bytes >= kPopulateBytes) state_.arena->populate_of_peer(offset + static_cast<uint64_t>(begin_bytes), bytes);
  return state_.segment->at(offset) + begin_bytes;
}

Rounds::Next SharedCollective::move_directly(uint64_t round) {
  const Operation& op = operation();
  switch (op.verb) {
    case Verb::all_reduce:
    case Verb::reduce: return reduce_own_share(round);
    case Verb::reduce_scatter:
      if (cursor_ == 0) state_.outs.assign(1, static_cast<std::byte*>(op.out.data));
      return reduce_part(round, part_begin(op.send_counts, state_.rank), op.out.count);
    case Verb::all_gather: return gather_directly(round);
    case Verb::all_to_all: return exchange_directly(round);
    case Verb::broadcast:
      if (state_.rank == op.root || op.out.data == state_.segment->at(data_of(op.root, round).in)) {
        return Next::round;
      }
      return copy_from(data_of(op.root, round).in, 0, static_cast<std::byte*>(op.out.data),
                       op.out.count * element_bytes_)
                 ? Next::round
                 : Next::same;
    case Verb::send:
    case Verb::recv:
    case Verb::barrier: break;
  }
  return Next::round;
}

Rounds::Next SharedCollective::reduce_own_share(uint64_t round) {
  const Operation& op = operation();
  int64_t begin = 0;
  int64_t count = op.in.count;
  const bool to_all = op.verb == Verb::all_reduce;
  if (to_all || data_of(op.root, round).out != 0) {
    const Piece own = share_of(state_.rank, count);
    begin = own.begin;
    count = own.count;
  } else if (state_.rank != op.root) {
    return Next::round;  // the result lies outside of the arenas: the root reduces alone
  }
  if (cursor_ == 0) {
    state_.outs.clear();
    const int64_t bytes = count * element_bytes_;
    for (int rank = 0; rank < state_.size; ++rank) {
      if (!to_all && rank != op.root) continue;
      const bool is_own = rank == state_.rank;
      state_.outs.push_back(is_own ? static_cast<std::byte*>(op.out.data) + begin * element_bytes_
                                   : reach(data_of(rank, round).out, begin * element_bytes_, bytes));
    }
  }
  return reduce_part(round, begin, count);
}

Rounds::Next SharedCollective::reduce_part(uint64_t round, int64_t begin, int64_t count) {
  const Operation& op = operation();
  const int64_t piece = std::min(count - cursor_, kPieceBytes >> element_shift_);
  if (piece <= 0) return Next::round;
  std::vector<const std::byte*>& sources = state_.sources;
  sources.clear();
  for (int rank = 0; rank < state_.size; ++rank) {
    const uint64_t offset = data_of(rank, round).in;
    const std::byte* first = cursor_ == 0 ? reach(offset, begin * element_bytes_, count * element_bytes_)
                                          : state_.segment->at(offset) + begin * element_bytes_;
    sources.push_back(first + cursor_ * element_bytes_);
  }
  std::vector<std::byte*>& outs = state_.piece_outs;
  outs = state_.outs;
  for (std::byte*& out : outs) out += cursor_ * element_bytes_;
  // The shares of two ranks meet in the middle: rank 0 moves down, away from the share of rank 1.
  const Direction direction = state_.size == 2 && state_.rank == 0 ? Direction::descending : Direction::ascending;
  reduce_to_all(op.op, op.dtype, sources, piece, outs, direction);
  cursor_ += piece;
  return cursor_ == count ? Next::round : Next::same;
}

bool SharedCollective::copy_from(uint64_t offset, int64_t begin_bytes, std::byte* to, int64_t bytes) {
  const int64_t piece = std::min(bytes - cursor_, kPieceBytes);
  if (piece > 0) {
    const std::byte* from = cursor_ == 0 ? reach(offset, begin_bytes, bytes) : state_.segment->at(offset) + begin_bytes;
    std::memcpy(to + cursor_, from + cursor_, static_cast<size_t>(piece));
    cursor_ += piece;
  }
  if (cursor_ < bytes) return false;
  cursor_ = 0;
  return true;
}

Rounds::Next SharedCollective::gather_directly(uint64_t round) {
  const Operation& op = operation();
  const uint64_t one = data_of(0, round).out;
  bool is_one_buffer = one != 0;
  bool is_in_place = true;  // on all ranks
  int64_t begin = 0;
  for (int rank = 0; rank < state_.size; ++rank) {
    const LineData& line = data_of(rank, round);
    is_one_buffer &= line.out == one;
    const int64_t count = op.recv_counts[static_cast<size_t>(rank)];
    is_in_place &= count == 0 || line.in == line.out + static_cast<uint64_t>(begin * element_bytes_);
    begin += count;
  }
  if (is_one_buffer && is_in_place) return Next::end;  // all parts are in the shared buffer already
  // Each rank starts with its own part and continues with its successors, so that not all read one rank at once.
  while (peer_ < state_.size) {
    const int from = (state_.rank + peer_) % state_.size;
    const int64_t part = part_begin(op.recv_counts, from);
    const int64_t bytes = op.recv_counts[static_cast<size_t>(from)] * element_bytes_;
    std::byte* to = static_cast<std::byte*>(op.out.data) + part * element_bytes_;
    const uint64_t offset = data_of(from, round).in;
    const bool is_there = bytes == 0 || to == state_.segment->at(offset) || (is_one_buffer && from != state_.rank);
    if (!is_there) {
      if (!copy_from(offset, 0, to, bytes)) return Next::same;
    }
    ++peer_;
  }
  return Next::round;
}

Rounds::Next SharedCollective::exchange_directly(uint64_t round) {
  const Operation& op = operation();
  while (peer_ < state_.size) {
    const int from = (state_.rank + peer_) % state_.size;
    const int64_t part = part_begin(op.recv_counts, from);
    const int64_t begin = part_begin(state_.region.send_counts(from, round), state_.rank);  // in the input of `from`
    const int64_t bytes = op.recv_counts[static_cast<size_t>(from)] * element_bytes_;
    if (bytes > 0 && !copy_from(data_of(from, round).in, begin * element_bytes_,
                                static_cast<std::byte*>(op.out.data) + part * element_bytes_, bytes)) {
      return Next::same;
    }
    ++peer_;
  }
  return Next::round;
}

}  // namespace caravan::shared
