#include "caravan/comm/shared/collective.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "caravan/comm/shared/compare_calls.h"
#include "caravan/comm/shared/reduce.h"

namespace caravan::shared {
namespace {

/// The elements of a part of `count` that step number `step` moves, `each` at a time.
int64_t length_at(int64_t step, int64_t each, int64_t count) {
  return std::clamp<int64_t>(count - step * each, 0, each);
}

int64_t largest(std::span<const int64_t> counts) { return counts.empty() ? 0 : std::ranges::max(counts); }

/// Elements `begin` .. of a buffer with memory; never called for an empty range, whose buffer may have none.
const std::byte* at(const ConstBuffer& buffer, int64_t begin) {
  return static_cast<const std::byte*>(buffer.data) + begin * size_bytes(buffer.dtype);
}
std::byte* at(const Buffer& buffer, int64_t begin) {
  return static_cast<std::byte*>(buffer.data) + begin * size_bytes(buffer.dtype);
}

}  // namespace

Collective::Collective(Seat& seat, std::shared_ptr<Operation> operation)
    : Rounds(seat, std::move(operation)), element_bytes_(size_bytes(this->operation().dtype)) {
  constexpr int64_t kLine = 64;
  const int64_t staging = static_cast<int64_t>(Region::staging_bytes(seat.size));
  chunk_elems_ = staging / element_bytes_;
  block_bytes_ = staging / seat.size / kLine * kLine;
  block_elems_ = block_bytes_ / element_bytes_;
}

void Collective::publish_call(uint64_t round) const {
  const Operation& op = operation();
  seat_.region.call(seat_.rank, round) = call();
  std::ranges::copy(op.send_counts, seat_.region.send_counts(seat_.rank, round).begin());
  std::ranges::copy(op.recv_counts, seat_.region.recv_counts(seat_.rank, round).begin());
}

int64_t Collective::count_steps(uint64_t round) const {
  const Operation& op = operation();
  int64_t elems = op.in.count;
  int64_t each = chunk_elems_;
  if (op.verb == Verb::all_gather) elems = largest(op.recv_counts);
  if (op.verb == Verb::reduce_scatter || op.verb == Verb::all_to_all) each = block_elems_;
  if (op.verb == Verb::reduce_scatter) elems = largest(op.send_counts);
  if (op.verb == Verb::all_to_all) {
    elems = 0;
    for (int rank = 0; rank < seat_.size; ++rank) {
      elems = std::max(elems, largest(seat_.region.send_counts(rank, round)));
    }
  }
  return std::max<int64_t>((elems + each - 1) / each, 1);
}

void Collective::write(uint64_t round, int64_t step) {
  if (step == 0) publish_call(round);
  const Operation& op = operation();
  switch (op.verb) {
    case Verb::all_reduce:
    case Verb::reduce:
    case Verb::all_gather:
      return write_range(round, 0, step * chunk_elems_, length_at(step, chunk_elems_, op.in.count));
    case Verb::broadcast:
      if (seat_.rank != op.root) return;
      return write_range(round, 0, step * chunk_elems_, length_at(step, chunk_elems_, op.in.count));
    case Verb::reduce_scatter:
    case Verb::all_to_all: return write_blocks(round, step);
    case Verb::barrier:
    case Verb::send:
    case Verb::recv: return;
  }
}

bool Collective::read(uint64_t round, int64_t step) {
  if (step == 0) {
    compare_calls(seat_, call(), round);
    num_steps_ = count_steps(round);
  }
  const Operation& op = operation();
  const int64_t begin = step * chunk_elems_;
  const int64_t length = length_at(step, chunk_elems_, op.in.count);
  switch (op.verb) {
    case Verb::all_reduce: reduce_range(round, 0, begin, length); break;
    case Verb::reduce:
      if (seat_.rank == op.root) reduce_range(round, 0, begin, length);
      break;
    case Verb::all_gather: gather_parts(round, step); break;
    case Verb::broadcast:
      if (seat_.rank != op.root) read_range(round, op.root, 0, begin, length);
      break;
    case Verb::reduce_scatter: read_reduced_block(round, step); break;
    case Verb::all_to_all: read_blocks(round, step); break;
    case Verb::barrier:
    case Verb::send:
    case Verb::recv: break;
  }
  return step + 1 == num_steps_;
}

void Collective::write_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const {
  if (count == 0) return;
  std::memcpy(seat_.region.staging(seat_.rank, round) + offset_bytes, at(operation().in, begin),
              static_cast<size_t>(count * element_bytes_));
}

void Collective::write_blocks(uint64_t round, int64_t step) const {
  int64_t part = 0;
  for (int to = 0; to < seat_.size; ++to) {
    const int64_t count = operation().send_counts[static_cast<size_t>(to)];
    write_range(round, to * block_bytes_, part + step * block_elems_, length_at(step, block_elems_, count));
    part += count;
  }
}

void Collective::reduce_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const {
  if (count == 0) return;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < seat_.size; ++rank) sources.push_back(seat_.region.staging(rank, round) + offset_bytes);
  reduce_in_order(operation().op, operation().dtype, sources, count, at(operation().out, begin));
}

void Collective::read_reduced_block(uint64_t round, int64_t step) const {
  reduce_range(round, seat_.rank * block_bytes_, step * block_elems_,
               length_at(step, block_elems_, operation().out.count));
}

void Collective::read_range(uint64_t round, int from, int64_t offset_bytes, int64_t to, int64_t count) const {
  if (count == 0) return;
  std::memcpy(at(operation().out, to), seat_.region.staging(from, round) + offset_bytes,
              static_cast<size_t>(count * element_bytes_));
}

void Collective::gather_parts(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  int64_t part = 0;
  for (int from = 0; from < seat_.size; ++from) {
    const int64_t count = op.recv_counts[static_cast<size_t>(from)];
    const int64_t begin = step * chunk_elems_;
    const int64_t length = length_at(step, chunk_elems_, count);
    if (from != seat_.rank) {
      read_range(round, from, 0, part + begin, length);
    } else if (length > 0 && at(op.out, part) != at(op.in, 0)) {
      std::memcpy(at(op.out, part + begin), at(op.in, begin), static_cast<size_t>(length * element_bytes_));
    }
    part += count;
  }
}

void Collective::read_blocks(uint64_t round, int64_t step) const {
  int64_t part = 0;
  for (int from = 0; from < seat_.size; ++from) {
    const int64_t count = operation().recv_counts[static_cast<size_t>(from)];
    read_range(round, from, seat_.rank * block_bytes_, part + step * block_elems_,
               length_at(step, block_elems_, count));
    part += count;
  }
}

}  // namespace caravan::shared
