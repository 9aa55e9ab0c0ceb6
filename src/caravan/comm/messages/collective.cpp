#include "caravan/comm/messages/collective.h"

#include <algorithm>
#include <cstring>

#include "caravan/comm/call_errors.h"
#include "caravan/comm/shared/reduce.h"

namespace caravan::messages {
namespace {

std::vector<int64_t> begins_of(std::span<const int64_t> counts) {
  std::vector<int64_t> begins{0};
  for (const int64_t count : counts) begins.push_back(begins.back() + count);
  return begins;
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

void CallSheet::write(const Descriptor& call, std::span<const int64_t> send_counts,
                      std::span<const int64_t> recv_counts) {
  std::memcpy(words_.data(), &call, sizeof(call));
  std::ranges::copy(send_counts, words_.begin() + kHead);
  std::ranges::copy(recv_counts, words_.begin() + kHead + static_cast<std::ptrdiff_t>(size_));
}

Descriptor CallSheet::descriptor() const {
  Descriptor descriptor;
  std::memcpy(static_cast<void*>(&descriptor), words_.data(), sizeof(descriptor));
  return descriptor;
}

std::vector<CallSheet> exchange_sheets(Lane& lane, const Seat& seat, CallSheet own) {
  std::vector<CallSheet> sheets(static_cast<size_t>(seat.size), CallSheet(seat.size));
  Exchange exchange(lane, *seat.transport, seat.world_ranks, seat.tag(Channel::collective));
  for (int peer = 0; peer < seat.size; ++peer) {
    if (peer == seat.rank) continue;
    CallSheet& sheet = sheets[static_cast<size_t>(peer)];
    exchange.recv(peer, sheet.data(), sheet.bytes());
    exchange.send(peer, own.data(), own.bytes());
  }
  exchange.finish();
  for (int peer = 0; peer < seat.size; ++peer) {
    if (peer == seat.rank) continue;
    const size_t at = static_cast<size_t>(peer);
    seat.last_calls->note(seat.world_ranks[at], sheets[at].descriptor(), seat.name);
  }
  sheets[static_cast<size_t>(seat.rank)] = std::move(own);
  return sheets;
}

void compare_sheets(const Seat& seat, const Descriptor& own, std::span<const CallSheet> sheets) {
  std::vector<Descriptor> descriptors;
  for (const CallSheet& sheet : sheets) descriptors.push_back(sheet.descriptor());
  std::vector<CallOf> calls;
  for (size_t rank = 0; rank < sheets.size(); ++rank) {
    calls.push_back({&descriptors[rank], sheets[rank].send_counts(), sheets[rank].recv_counts()});
  }
  const std::string text = difference(calls);
  if (!text.empty()) std::rethrow_exception(mismatch_error(seat, own, "the ranks' calls differ: " + text));
}

Exchange Collective::exchange(Lane& lane) const {
  return {lane, *seat_.transport, seat_.world_ranks, seat_.tag(Channel::collective)};
}

std::vector<int64_t> Collective::equal_parts() const {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= seat_.size; ++i) begins.push_back(operation_->in.count * i / seat_.size);
  return begins;
}

void Collective::run(Lane& lane) {
  const Operation& op = *operation_;
  // The sheets are also what a barrier is made of.
  if (seat_.check || op.verb == Verb::barrier) check(lane);
  switch (op.verb) {
    case Verb::all_reduce: return all_reduce(lane);
    case Verb::reduce: return reduce(lane);
    case Verb::reduce_scatter: return reduce_part(lane, begins_of(op.send_counts), out());
    case Verb::all_gather: return gather_parts(lane, begins_of(op.recv_counts), in(), out());
    case Verb::all_to_all: return all_to_all(lane);
    case Verb::broadcast: return broadcast(lane);
    case Verb::barrier:
    case Verb::send:
    case Verb::recv: return;
  }
}

void Collective::check(Lane& lane) {
  CallSheet own(seat_.size);
  own.write(call(), operation_->send_counts, operation_->recv_counts);
  const std::vector<CallSheet> sheets = exchange_sheets(lane, seat_, std::move(own));
  if (seat_.check) compare_sheets(seat_, call(), sheets);
}

void Collective::reduce_part(Lane& lane, std::span<const int64_t> begins, std::byte* out) {
  const size_t rank = static_cast<size_t>(seat_.rank);
  const int64_t own_count = begins[rank + 1] - begins[rank];
  const int64_t own_bytes = own_count * elem_bytes();
  const auto received = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(own_bytes * seat_.size));
  std::vector<const std::byte*> sources;
  Exchange parts = exchange(lane);
  for (int peer = 0; peer < seat_.size; ++peer) {
    const std::byte* part = in() + begins[static_cast<size_t>(peer)] * elem_bytes();
    if (peer == seat_.rank) {
      sources.push_back(part);
      continue;
    }
    std::byte* place = received.get() + own_bytes * peer;
    sources.push_back(place);
    parts.recv(peer, place, own_bytes);
    parts.send(peer, part, (begins[static_cast<size_t>(peer) + 1] - begins[static_cast<size_t>(peer)]) * elem_bytes());
  }
  parts.finish();
  if (own_count > 0) shared::reduce_in_order(operation_->op, operation_->dtype, sources, own_count, out);
}

void Collective::gather_parts(Lane& lane, std::span<const int64_t> begins, const std::byte* own, std::byte* out) {
  const auto bytes_of = [&](size_t rank) { return (begins[rank + 1] - begins[rank]) * elem_bytes(); };
  const size_t rank = static_cast<size_t>(seat_.rank);
  Exchange parts = exchange(lane);
  for (int peer = 0; peer < seat_.size; ++peer) {
    if (peer == seat_.rank) continue;
    const size_t from = static_cast<size_t>(peer);
    parts.recv(peer, out + begins[from] * elem_bytes(), bytes_of(from));
    parts.send(peer, own, bytes_of(rank));
  }
  copy_bytes(out + begins[rank] * elem_bytes(), own, bytes_of(rank));
  parts.finish();
}

void Collective::all_reduce(Lane& lane) {
  const std::vector<int64_t> begins = equal_parts();
  std::byte* own = out() + begins[static_cast<size_t>(seat_.rank)] * elem_bytes();
  reduce_part(lane, begins, own);
  gather_parts(lane, begins, own, out());
}

void Collective::reduce(Lane& lane) {
  const std::vector<int64_t> begins = equal_parts();
  const auto bytes_of = [&](size_t rank) { return (begins[rank + 1] - begins[rank]) * elem_bytes(); };
  const size_t rank = static_cast<size_t>(seat_.rank);
  const auto own = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_of(rank)));
  reduce_part(lane, begins, own.get());
  Exchange parts = exchange(lane);
  if (seat_.rank != operation_->root) {
    parts.send(operation_->root, own.get(), bytes_of(rank));
  } else {
    for (int peer = 0; peer < seat_.size; ++peer) {
      const size_t from = static_cast<size_t>(peer);
      if (from != rank) parts.recv(peer, out() + begins[from] * elem_bytes(), bytes_of(from));
    }
    copy_bytes(out() + begins[rank] * elem_bytes(), own.get(), bytes_of(rank));
  }
  parts.finish();
}

void Collective::broadcast(Lane& lane) {
  const int64_t bytes = operation_->in.count * elem_bytes();
  Exchange copies = exchange(lane);
  if (seat_.rank != operation_->root) {
    copies.recv(operation_->root, out(), bytes);
  } else {
    for (int peer = 0; peer < seat_.size; ++peer) {
      if (peer != seat_.rank) copies.send(peer, in(), bytes);
    }
  }
  copies.finish();
}

void Collective::all_to_all(Lane& lane) {
  const std::vector<int64_t> sent = begins_of(operation_->send_counts);
  const std::vector<int64_t> received = begins_of(operation_->recv_counts);
  Exchange parts = exchange(lane);
  for (int peer = 0; peer < seat_.size; ++peer) {
    const size_t at = static_cast<size_t>(peer);
    std::byte* to = out() + received[at] * elem_bytes();
    const std::byte* from = in() + sent[at] * elem_bytes();
    if (peer == seat_.rank) {
      copy_bytes(to, from, operation_->send_counts[at] * elem_bytes());
      continue;
    }
    parts.recv(peer, to, operation_->recv_counts[at] * elem_bytes());
    parts.send(peer, from, operation_->send_counts[at] * elem_bytes());
  }
  parts.finish();
}

}  // namespace caravan::messages
