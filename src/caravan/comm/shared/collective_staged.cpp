#include <algorithm>
#include <cstring>
#include <span>

#include "caravan/comm/shared/collective.h"
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
  const int64_t steps = std::max<int64_t>((elems + each - 1) / each, 1);
  return path_ == Path::paired ? 2 * steps : steps;
}

void Collective::write_staged(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  if (path_ == Path::paired) {
    if (step % 2 != 0) return write_result(round, step / 2);
    step /= 2;
  }
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

bool Collective::read_staged(uint64_t round, int64_t step) const {
  const Operation& op = operation();
  const int64_t begin = step * chunk_elems_;
  const int64_t length = length_at(step, chunk_elems_, op.in.count);
  switch (op.verb) {
    case Verb::all_reduce:
      if (path_ == Path::paired) {
        read_paired(round, step);
      } else {
        reduce_range(round, 0, begin, begin, length);
      }
      break;
    case Verb::reduce:
      if (seat_.rank == op.root) reduce_range(round, 0, begin, begin, length);
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
    const bool is_own = to == seat_.rank && operation().verb == Verb::reduce_scatter;  // read where it is
    if (!is_own) {
      write_range(round, to * block_bytes_, part + step * block_elems_, length_at(step, block_elems_, count));
    }
    part += count;
  }
}

void Collective::reduce_range(uint64_t round, int64_t offset_bytes, int64_t own, int64_t begin, int64_t count) const {
  if (count == 0) return;
  std::vector<const std::byte*>& sources = seat_.sources;
  sources.clear();
  for (int rank = 0; rank < seat_.size; ++rank) {
    sources.push_back(rank == seat_.rank ? at(operation().in, own) : seat_.region.staging(rank, round) + offset_bytes);
  }
  reduce_in_order(operation().op, operation().dtype, sources, count, at(operation().out, begin));
}

void Collective::read_reduced_block(uint64_t round, int64_t step) const {
  int64_t part = 0;
  for (int rank = 0; rank < seat_.rank; ++rank) part += operation().send_counts[static_cast<size_t>(rank)];
  const int64_t begin = step * block_elems_;
  reduce_range(round, seat_.rank * block_bytes_, part + begin, begin,
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

Collective::Piece Collective::piece_of(int rank, int64_t chunk) const {
  const int64_t align = 64 / element_bytes_;
  const int64_t length = length_at(chunk, chunk_elems_, operation().in.count);
  const int64_t each = (length / seat_.size + align) / align * align;
  const int64_t begin = std::min(length, each * rank);
  return {begin, std::min(each, length - begin)};
}

void Collective::write_result(uint64_t round, int64_t chunk) const {
  const Piece own = piece_of(seat_.rank, chunk);
  if (own.count == 0) return;
  std::memcpy(seat_.region.staging(seat_.rank, round) + own.begin * element_bytes_,
              at(operation().out, chunk * chunk_elems_ + own.begin), static_cast<size_t>(own.count * element_bytes_));
}

void Collective::read_paired(uint64_t round, int64_t step) const {
  const int64_t chunk = step / 2;
  const int64_t first = chunk * chunk_elems_;
  if (step % 2 == 0) {
    const Piece own = piece_of(seat_.rank, chunk);
    return reduce_range(round, own.begin * element_bytes_, first + own.begin, first + own.begin, own.count);
  }
  for (int from = 0; from < seat_.size; ++from) {
    const Piece piece = piece_of(from, chunk);
    if (from != seat_.rank) read_range(round, from, piece.begin * element_bytes_, first + piece.begin, piece.count);
  }
}

}  // namespace caravan::shared
