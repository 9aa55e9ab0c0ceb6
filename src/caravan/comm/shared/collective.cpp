#include "caravan/comm/shared/collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "caravan/comm/shared/compare_calls.h"
#include "caravan/comm/shared/reduce.h"

namespace caravan::shared {
namespace {

// Below it a copy through the cache, with one round less, is faster than to work in place.
constexpr int64_t kDirectBytes = 2048;
// Above it more than two ranks reduce a part each and exchange the results, instead of all reducing everything.
constexpr int64_t kPairedBytes = 16 * 1024;

constexpr uint64_t kNothing = 1;  // the place of an empty buffer: reachable, and never looked at

uint64_t place_of(const Segment& segment, const ConstBuffer& buffer) noexcept {
  if (buffer.count == 0) return kNothing;
  return segment.offset_of(buffer.data, static_cast<size_t>(buffer.count * size_bytes(buffer.dtype)));
}

bool fit_in_pairs(const Region& region, int size, uint64_t round) {
  for (int from = 0; from < size; ++from) {
    const auto sent = region.send_counts(from, round);
    for (int to = 0; to < size; ++to) {
      if (sent[static_cast<size_t>(to)] != region.recv_counts(to, round)[static_cast<size_t>(from)]) return false;
    }
  }
  return true;
}

}  // namespace

Collective::Collective(Seat& seat, Operation& operation)
    : Rounds(seat, operation), element_bytes_(size_bytes(operation.dtype)) {
  constexpr int64_t kLine = 64;
  const int64_t staging = static_cast<int64_t>(Region::staging_bytes(seat.size));
  chunk_elems_ = staging / element_bytes_;
  block_bytes_ = staging / seat.size / kLine * kLine;
  block_elems_ = block_bytes_ / element_bytes_;
}

bool Collective::fits_payload() const noexcept {
  const Operation& op = operation();
  if (op.verb == Verb::barrier) return true;
  if (op.verb == Verb::all_to_all) return false;
  int64_t elems = op.in.count;
  if (op.verb == Verb::all_gather) elems = std::ranges::max(op.recv_counts);
  return elems * element_bytes_ <= static_cast<int64_t>(Line::kPayloadBytes);
}

void Collective::show_call(uint64_t round) {
  const Operation& op = operation();
  Line& line = own_line(round);
  line.call = call_signature(op);
  line.size = size_signature(op);
  if (op.verb == Verb::all_to_all) {  // what each reads of the others' buffers
    std::ranges::copy(op.send_counts, seat_.region.send_counts(seat_.rank, round).begin());
    std::ranges::copy(op.recv_counts, seat_.region.recv_counts(seat_.rank, round).begin());
  }
  line.in = 0;
  line.out = 0;
  if (std::max(op.in.count, op.out.count) * element_bytes_ < kDirectBytes) return;
  line.in = place_of(*seat_.segment, op.in);
  line.out = place_of(*seat_.segment, op.out);
  // An all_reduce in place works on both or on none.
  if (op.verb == Verb::all_reduce && line.out == 0) line.in = 0;
}

void Collective::write(uint64_t round, int64_t step) {
  if (step > 0) {
    if (path_ != Path::direct) write_staged(round, step - first_step_);
    return;
  }
  show_call(round);
  const Operation& op = operation();
  if (!fits_payload()) {
    if (own_line(round).in == 0) write_staged(round, 0);
  } else if (op.in.count > 0 && (op.verb != Verb::broadcast || op.root == seat_.rank)) {
    std::memcpy(own_line(round).payload.data(), op.in.data, static_cast<size_t>(op.in.count * element_bytes_));
  }
}

Rounds::Next Collective::read(uint64_t round, int64_t step) {
  if (step == 0 && cursor_ == 0 && peer_ == 0) {
    path_ = choose(round);
    num_steps_ = count_steps(round);
    if (path_ == Path::payload) {
      read_payloads(round);
      return Next::end;
    }
    // Who expected to work in place has staged nothing.
    bool somebody_shows = false;
    for (int rank = 0; rank < seat_.size; ++rank) somebody_shows |= seat_.region.line(rank, round).in != 0;
    if (path_ != Path::direct && somebody_shows) {
      first_step_ = 1;
      return Next::round;
    }
  }
  if (path_ == Path::direct) return step == 0 ? move_directly(round) : Next::end;
  return read_staged(round, step - first_step_) ? Next::end : Next::round;
}

bool Collective::calls_fit(uint64_t round) const {
  if (!Rounds::calls_fit(round)) return false;
  return operation().verb != Verb::all_to_all || fit_in_pairs(seat_.region, seat_.size, round);
}

Collective::Path Collective::choose(uint64_t round) const {
  const Operation& op = operation();
  if (fits_payload()) return Path::payload;
  bool all_show = true;
  for (int rank = 0; rank < seat_.size; ++rank) all_show &= seat_.region.line(rank, round).in != 0;
  if (op.verb == Verb::broadcast) all_show = seat_.region.line(op.root, round).in != 0;
  if (all_show) return Path::direct;
  const bool is_long = op.in.count * element_bytes_ > kPairedBytes;
  return op.verb == Verb::all_reduce && seat_.size > 2 && is_long ? Path::paired : Path::staged;
}

void Collective::collect_payloads(uint64_t round) const {
  std::vector<const std::byte*>& sources = seat_.sources;
  sources.clear();
  for (int rank = 0; rank < seat_.size; ++rank) sources.push_back(seat_.region.line(rank, round).payload.data());
}

void Collective::read_payloads(uint64_t round) const {
  const Operation& op = operation();
  auto* out = static_cast<std::byte*>(op.out.data);
  if (op.in.count == 0 && op.verb != Verb::all_gather) return;
  switch (op.verb) {
    case Verb::reduce:
      if (seat_.rank != op.root) return;
      [[fallthrough]];
    case Verb::all_reduce:
      collect_payloads(round);
      return reduce_in_order(op.op, op.dtype, seat_.sources, op.in.count, out);
    case Verb::broadcast:
      std::memcpy(out, seat_.region.line(op.root, round).payload.data(),
                  static_cast<size_t>(op.in.count * element_bytes_));
      return;
    case Verb::all_gather:
      for (int rank = 0; rank < seat_.size; ++rank) {
        const auto bytes = static_cast<size_t>(op.recv_counts[static_cast<size_t>(rank)] * element_bytes_);
        if (bytes > 0) std::memcpy(out, seat_.region.line(rank, round).payload.data(), bytes);
        out += bytes;
      }
      return;
    case Verb::reduce_scatter: {
      int64_t begin = 0;
      for (int rank = 0; rank < seat_.rank; ++rank) begin += op.send_counts[static_cast<size_t>(rank)];
      if (op.out.count == 0) return;
      collect_payloads(round);
      for (const std::byte*& source : seat_.sources) source += begin * element_bytes_;
      return reduce_in_order(op.op, op.dtype, seat_.sources, op.out.count, out);
    }
    case Verb::all_to_all:
    case Verb::send:
    case Verb::recv:
    case Verb::barrier: return;
  }
}

}  // namespace caravan::shared
