#include "caravan/comm/c10d/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/c10d/tensors.h"

namespace caravan {
namespace {

constexpr const char* kEnvelope = "c10d envelope";
constexpr const char* kPayload = "c10d message";

template <class T>
Buffer bytes_of(T& object) {
  return {&object, static_cast<int64_t>(sizeof(T)), Dtype::uint8, {}};
}

}  // namespace

C10dMessages::C10dMessages(Communicator& communicator)
    : comm_(communicator), peers_(static_cast<size_t>(communicator.size())) {}

std::vector<Work> C10dMessages::send(const at::Tensor& tensor, int to, int tag) {
  const Buffer payload = movable_buffer(tensor, "send").buffer;
  auto envelope = std::make_shared<Envelope>(Envelope{tag, static_cast<int64_t>(payload.dtype), payload.count});
  std::vector<Work> parts{comm_.send_async(bytes_of(*envelope), to, kEnvelope)};
  parts.back().keep(envelope);
  parts.push_back(comm_.send_async(payload, to, kPayload));
  parts.back().keep(std::make_shared<at::Tensor>(tensor));
  return parts;
}

void C10dMessages::receive(const c10::intrusive_ptr<C10dWork>& work, int from, int tag, const at::Tensor& tensor) {
  const Pending pending{work, from, tag, tensor};
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank == comm_.rank() || (from != kAnySource && from != rank)) continue;
    if (from == kAnySource && !comm_.has_message(rank).has_value()) {
      throw UsageError({.op = work->name(),
                        .fact = fmt::format("the back-end {} does not show whose message has arrived", comm_.backend()),
                        .action = "name the source rank"});
    }
    if (take_stored(rank, pending)) return;
  }
  pending_.push_back(pending);
  advance();
}

void C10dMessages::advance() {
  for (int rank = 0; rank < comm_.size() && !pending_.empty(); ++rank) {
    while (rank != comm_.rank() && advance(rank)) {
    }
  }
}

bool C10dMessages::needs_envelope(int rank) const {
  if (std::ranges::find(pending_, rank, &Pending::from) != pending_.end()) return true;
  const bool takes_any = std::ranges::find(pending_, kAnySource, &Pending::from) != pending_.end();
  return takes_any && comm_.has_message(rank).value_or(false);
}

/// Returns true if an envelope of `rank` has arrived.
bool C10dMessages::advance(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  try {
    if (peer.envelope == nullptr) {
      if (!needs_envelope(rank)) return false;
      const auto envelope = std::make_shared<Envelope>();
      peer.receive = comm_.recv_async(bytes_of(*envelope), rank, kEnvelope);
      peer.receive.keep(envelope);
      peer.envelope = envelope;
    }
    if (!peer.receive.done()) return false;
    peer.receive.wait();  // throws its error
    accept(rank, *std::exchange(peer.envelope, nullptr));
    return true;
  } catch (const std::exception&) {
    peer.envelope.reset();
    fail_all_from(rank, std::current_exception());
    return false;
  }
}

void C10dMessages::accept(int rank, const Envelope& envelope) {
  const auto found = std::ranges::find_if(pending_, [&](const Pending& pending) {
    return (pending.from == rank || pending.from == kAnySource) && pending.tag == envelope.tag;
  });
  if (found != pending_.end()) {
    const Pending pending = *found;
    pending_.erase(found);
    try {  // a size mismatch is an error of the communicator, which names both calls
      Work payload = comm_.recv_async(movable_buffer(pending.tensor, "recv").buffer, rank, kPayload);
      payload.keep(std::make_shared<at::Tensor>(pending.tensor));
      start(pending, rank, {std::move(payload)}, nullptr);
    } catch (const std::exception&) {
      start(pending, rank, {}, std::current_exception());
    }
    return;
  }
  const auto dtype = static_cast<Dtype>(envelope.dtype);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(envelope.count * size_bytes(dtype)));
  Work payload = comm_.recv_async({bytes->data(), envelope.count, dtype, {}}, rank, kPayload);
  payload.keep(bytes);
  peers_[static_cast<size_t>(rank)].stored.push_back({envelope, std::move(bytes), std::move(payload)});
}

bool C10dMessages::take_stored(int rank, const Pending& pending) {
  auto& stored = peers_[static_cast<size_t>(rank)].stored;
  const auto found =
      std::ranges::find_if(stored, [&](const Stored& message) { return message.envelope.tag == pending.tag; });
  if (found == stored.end()) return false;
  const Stored message = std::move(*found);
  stored.erase(found);
  const Buffer own = movable_buffer(pending.tensor, "recv").buffer;
  const auto dtype = static_cast<Dtype>(message.envelope.dtype);
  if (own.dtype != dtype || own.count != message.envelope.count) {
    const CommError error(
        {.op = pending.work->name(),
         .fact = fmt::format("rank {} sent {} [{}] with tag {}, this rank receives {} [{}]", rank, name(dtype),
                             message.envelope.count, pending.tag, name(own.dtype), own.count),
         .where = fmt::format("rank {} of {}", comm_.rank(), comm_.size()),
         .action = "receive what the other rank sends"});
    comm_.abort(error.what());  // as for every call that differs from the peer's
    start(pending, rank, {}, std::make_exception_ptr(error));
    return true;
  }
  pending.work->call_.finish = [bytes = message.bytes, tensor = pending.tensor] {
    if (!bytes->empty()) std::memcpy(tensor.mutable_data_ptr(), bytes->data(), bytes->size());
  };
  start(pending, rank, {message.payload}, nullptr);
  return true;
}

void C10dMessages::start(const Pending& pending, int rank, std::vector<Work> parts, std::exception_ptr error) {
  {
    const std::lock_guard lock(pending.work->mutex_);
    pending.work->source_ = rank;
  }
  pending.work->begin(std::move(parts), std::move(error));
}

void C10dMessages::fail_all_from(int rank, const std::exception_ptr& error) {
  std::erase_if(pending_, [&](const Pending& pending) {
    if (pending.from != rank && pending.from != kAnySource) return false;
    pending.work->begin({}, error);
    return true;
  });
}

void C10dMessages::fail(const C10dWork& work, const std::exception_ptr& error) {
  std::erase_if(pending_, [&](const Pending& pending) {
    if (pending.work.get() != &work) return false;
    pending.work->begin({}, error);
    return true;
  });
}

bool C10dMessages::can_block_for(const C10dWork& work) const {
  if (pending_.empty()) return true;
  return pending_.size() == 1 && pending_.front().work.get() == &work && pending_.front().from != kAnySource;
}

bool C10dMessages::takes_any(const C10dWork& work) const {
  return std::ranges::any_of(pending_,
                             [&](const Pending& each) { return each.work.get() == &work && each.from == kAnySource; });
}

void C10dMessages::wait_for_envelope(const C10dWork& work) {
  const auto found = std::ranges::find_if(pending_, [&](const Pending& each) { return each.work.get() == &work; });
  if (found == pending_.end() || found->from == kAnySource) return;
  try {
    peers_[static_cast<size_t>(found->from)].receive.wait();
  } catch (const std::exception&) {  // advance() reports it
  }
}

}  // namespace caravan
