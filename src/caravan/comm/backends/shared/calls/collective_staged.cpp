#include <algorithm>
#include <cstring>
#include <span>

#include "caravan/comm/backends/shared/calls/shared_collective.h"
#include "caravan/comm/operations.h"
#include "caravan/comm/reduce/reduce.h"

namespace caravan::shared {
namespace {

constexpr int64_t kLineBytes = 64;

/// The number of elements that step `step` moves of `count`, at `each` elements per step.
int64_t length_at(int64_t step, int64_t each, int64_t count) {
  return std::clamp<int64_t>(count - step * each, 0, each);
}

int64_t largest(std::span<const int64_t> counts) { return counts.empty() ? 0 : std::ranges::max(counts); }

/// The address of element `begin`. Not for empty buffers, which may have no memory.
const std::byte* at(const ConstBuffer& buffer, int64_t begin) {
  return static_cast<const std::byte*>(buffer.data) + begin * size_bytes(buffer.dtype);
}
std::byte* at(const Buffer& buffer, int64_t begin) {
  return static_cast<std::byte*>(buffer.data) + begin * size_bytes(buffer.dtype);
}

}  // namespace

int64_t SharedCollective::count_steps(uint64_t round) const {
  const Operation& op = operation();
  int64_t elems = op.in.count;
  int64_t each = chunk_elems();
  if (op.verb == Verb::all_gather) elems = largest(op.recv_counts);
  if (op.verb == Verb::reduce_scatter || op.verb == Verb::all_to_all) each = block_elems();
  if (op.verb == Verb::reduce_scatter) elems = largest(op.send_counts);
  if (op.verb == Verb::all_to_all) {
    elems = 0;
    for (int rank = 0; rank < state_.size; ++rank) {
      elems = std::max(elems, largest(state_.region.send_counts(rank, round)));
    }
  }
  const int64_t steps = std::max<int64_t>((elems + each - 1) / each, 1);
  return path_ == Path::paired ? 2 * steps : steps;
}

void SharedCollective::write_staged(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  if (path_ == Path::paired) {
    if (step % 2 != 0) return write_result(round, step / 2);
    step /= 2;
  }
  switch (op.verb) {
    case Verb::all_reduce:
    case Verb::reduce:
    case Verb::all_gather:
      return write_range(round, 0, step * chunk_elems(), length_at(step, chunk_elems(), op.in.count));
    case Verb::broadcast:
      if (state_.rank != op.root) return;
      return write_range(round, 0, step * chunk_elems(), length_at(step, chunk_elems(), op.in.count));
    case Verb::reduce_scatter:
    case Verb::all_to_all: return write_blocks(round, step);
    case Verb::barrier:
    case Verb::send:
    case Verb::recv: return;
  }
}

bool SharedCollective::read_staged(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  const int64_t begin = step * chunk_elems();
  const int64_t length = length_at(step, chunk_elems(), op.in.count);
  switch (op.verb) {
    case Verb::all_reduce:
      if (path_ == Path::paired) {
        read_paired(round, step);
      } else {
        reduce_range(round, 0, begin, begin, length);
      }
      break;
    case Verb::reduce:
      if (state_.rank == op.root) reduce_range(round, 0, begin, begin, length);
      break;
    case Verb::all_gather: gather_parts(round, step); break;
    case Verb::broadcast:
      if (state_.rank != op.root) read_range(round, op.root, 0, begin, length);
      break;
    case Verb::reduce_scatter: read_reduced_block(round, step); break;
    case Verb::all_to_all: read_blocks(round, step); break;
    case Verb::barrier:
    case Verb::send:
    case Verb::recv: break;
  }
  return step + 1 == num_steps_;
}

void SharedCollective::write_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const {
  if (count == 0) return;
  std::memcpy(state_.region.staging(state_.rank, round) + offset_bytes, at(operation().in, begin),
              static_cast<size_t>(count * element_bytes_));
}

void SharedCollective::write_blocks(uint64_t round, int64_t step) const {
  int64_t part = 0;
  for (int to = 0; to < state_.size; ++to) {
    const int64_t count = operation().send_counts[static_cast<size_t>(to)];
    const bool is_own = to == state_.rank && operation().verb == Verb::reduce_scatter;  // read from the input
    if (!is_own) {
      write_range(round, to * block_bytes(), part + step * block_elems(), length_at(step, block_elems(), count));
    }
    part += count;
  }
}

void SharedCollective::reduce_range(uint64_t round, int64_t offset_bytes, int64_t own, int64_t begin,
                                    int64_t count) const {
  if (count == 0) return;
  std::vector<const std::byte*>& sources = state_.sources;
  sources.clear();
  for (int rank = 0; rank < state_.size; ++rank) {
    sources.push_back(rank == state_.rank ? at(operation().in, own)
                                          : state_.region.staging(rank, round) + offset_bytes);
  }
  reduce_in_order(operation().op, operation().dtype, sources, count, at(operation().out, begin));
}

void SharedCollective::read_reduced_block(uint64_t round, int64_t step) const {
  const int64_t part = part_begin(operation().send_counts, state_.rank);
  const int64_t begin = step * block_elems();
  reduce_range(round, state_.rank * block_bytes(), part + begin, begin,
               length_at(step, block_elems(), operation().out.count));
}

void SharedCollective::read_range(uint64_t round, int from, int64_t offset_bytes, int64_t to, int64_t count) const {
  if (count == 0) return;
  std::memcpy(at(operation().out, to), state_.region.staging(from, round) + offset_bytes,
              static_cast<size_t>(count * element_bytes_));
}

void SharedCollective::gather_parts(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  int64_t part = 0;
  for (int from = 0; from < state_.size; ++from) {
    const int64_t count = op.recv_counts[static_cast<size_t>(from)];
    const int64_t begin = step * chunk_elems();
    const int64_t length = length_at(step, chunk_elems(), count);
    if (from != state_.rank) {
      read_range(round, from, 0, part + begin, length);
    } else if (length > 0 && at(op.out, part) != at(op.in, 0)) {
      std::memcpy(at(op.out, part + begin), at(op.in, begin), static_cast<size_t>(length * element_bytes_));
    }
    part += count;
  }
}

void SharedCollective::read_blocks(uint64_t round, int64_t step) const {
  int64_t part = 0;
  for (int from = 0; from < state_.size; ++from) {
    const int64_t count = operation().recv_counts[static_cast<size_t>(from)];
    read_range(round, from, state_.rank * block_bytes(), part + step * block_elems(),
               length_at(step, block_elems(), count));
    part += count;
  }
}

int64_t SharedCollective::block_bytes() const noexcept {
  return static_cast<int64_t>(Region::staging_bytes(state_.size)) / state_.size / kLineBytes * kLineBytes;
}

SharedCollective::Piece SharedCollective::share_of(int rank, int64_t count) const noexcept {
  const int64_t line = kLineBytes >> element_shift_;
  const int64_t each = ((count + state_.size - 1) / state_.size + line - 1) & -line;
  const int64_t begin = std::min(count, each * rank);
  return {begin, std::min(each, count - begin)};
}

SharedCollective::Piece SharedCollective::piece_of(int rank, int64_t chunk) const {
  return share_of(rank, length_at(chunk, chunk_elems(), operation().in.count));
}

void SharedCollective::write_result(uint64_t round, int64_t chunk) const {
  const Piece own = piece_of(state_.rank, chunk);
  if (own.count == 0) return;
  std::memcpy(state_.region.staging(state_.rank, round) + own.begin * element_bytes_,
              at(operation().out, chunk * chunk_elems() + own.begin), static_cast<size_t>(own.count * element_bytes_));
}

void SharedCollective::read_paired(uint64_t round, int64_t step) const {
  const int64_t chunk = step / 2;
  const int64_t first = chunk * chunk_elems();
  if (step % 2 == 0) {
    const Piece own = piece_of(state_.rank, chunk);
    return reduce_range(round, own.begin * element_bytes_, first + own.begin, first + own.begin, own.count);
  }
  for (int from = 0; from < state_.size; ++from) {
    const Piece piece = piece_of(from, chunk);
    if (from != state_.rank) read_range(round, from, piece.begin * element_bytes_, first + piece.begin, piece.count);
  }
}

}  // namespace caravan::shared
