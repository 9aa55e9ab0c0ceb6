#include "caravan/comm/backends/shared/peers/local_peers.h"

#include <algorithm>
#include <random>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/peers/announcement.h"
#include "caravan/comm/backends/shared/peers/local_socket.h"
#include "caravan/comm/backends/wait_policy.h"

namespace caravan::shared {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Schedule {
  milliseconds timeout;
  Deadline deadline;
};

uint64_t random_token() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

[[noreturn]] void throw_lost(int rank, const RankInfo& info) {
  throw CommError({.op = "shm",
                   .subject = "world",
                   .fact = fmt::format("rank {} ended while the ranks connected", rank),
                   .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                   .action = "see the output of that rank"});
}

/// Rank 0: waits for all peers, then creates the memory and sends it to them.
class Root {
 public:
  Root(const RankInfo& info, Store& store, const LocalSocket& listener, uint64_t token)
      : info_(info), store_(store), listener_(listener), token_(token), joined_(static_cast<size_t>(info.world_size)) {}

  /// `max_bytes`: what every rank can reserve.
  LocalPeers run(size_t max_bytes, const Schedule& schedule) {
    LocalPeers local;
    try {
      while (std::ranges::count_if(joined_, [](const auto& joined) { return joined.has_value(); }) + 1 <
             info_.world_size) {
        accept_peer(schedule);
      }
      auto [descriptor, segment] = Segment::create_shared(info_.world_size, max_bytes);
      segment->take_slot();  // slot 0: the world
      send_memory(descriptor, segment->layout(), schedule);
      local.segment = std::move(segment);
    } catch (const Error& error) {
      reject_all(error);
      throw;
    }
    for (auto& joined : joined_) {
      if (joined.has_value()) local.peers.push_back(std::move(joined->process));
    }
    return local;
  }

 private:
  struct Joined {
    LocalSocket socket;
    PeerProcess process;
  };

  void accept_peer(const Schedule& schedule) {
    auto socket = listener_.accept(std::min(schedule.deadline, steady_clock::now() + kRendezvousCheckInterval));
    if (!socket.has_value()) {
      std::vector<int64_t> missing;
      bool any_left = false;
      for (int rank = 1; rank < info_.world_size; ++rank) {
        if (joined_[static_cast<size_t>(rank)].has_value()) continue;
        missing.push_back(rank);
        any_left = any_left || store_.has_disconnected(rank);
      }
      if (!any_left && steady_clock::now() < schedule.deadline) return;
      throw_missing(std::move(missing), info_, store_, schedule.timeout);
    }
    // Another user's process, or a rank that died at once: ignored, so that it does not delay the others.
    if (socket->peer_user() != geteuid()) return;
    auto hello = socket->receive(std::min(schedule.deadline, steady_clock::now() + milliseconds(1000)));
    if (!hello.has_value() || hello->packet.kind != PacketKind::hello || hello->packet.token != token_) return;
    const Packet& packet = hello->packet;
    if (packet.rank < 1 || packet.rank >= info_.world_size || !hello->descriptor) return;
    const uint64_t slot_bytes = SegmentLayout{info_.world_size}.slot_bytes();
    if (packet.slot_bytes != slot_bytes) {
      throw UsageError({.op = "shm",
                        .subject = "world",
                        .fact = fmt::format("rank {} runs another build: a communicator takes {} bytes there, {} on "
                                            "rank 0",
                                            packet.rank, packet.slot_bytes, slot_bytes),
                        .where = "rank 0",
                        .action = "run the same build of Caravan on every rank"});
    }
    joined_[static_cast<size_t>(packet.rank)] =
        Joined{std::move(*socket), {packet.rank, packet.process, std::move(hello->descriptor)}};
  }

  void send_memory(const Fd& memory, const SegmentLayout& layout, const Schedule& schedule) {
    const PeerProcess own = own_process(0);
    for (const auto& joined : joined_) {
      if (!joined.has_value()) continue;
      const auto send = [&](const Packet& packet, const Fd& descriptor) {
        if (!joined->socket.send(packet, descriptor.get(), schedule.deadline)) {
          throw_lost(joined->process.world_rank, info_);
        }
      };
      send(Packet{.kind = PacketKind::memory, .num_slots = layout.num_slots, .arena_bytes = layout.arena_bytes},
           memory);
      for (const auto& other : joined_) {
        const PeerProcess& process = other.has_value() ? other->process : own;
        if (process.world_rank == joined->process.world_rank) continue;
        send(Packet{.kind = PacketKind::process, .rank = process.world_rank, .process = process.number},
             process.descriptor);
      }
    }
  }

  void reject_all(const Error& error) noexcept {
    Packet packet{.kind = PacketKind::refusal};
    packet.set_text(error.text().fact);
    for (const auto& joined : joined_) {
      if (joined.has_value()) joined->socket.send(packet, -1, steady_clock::now() + milliseconds(100));
    }
  }

  const RankInfo& info_;
  Store& store_;
  const LocalSocket& listener_;
  uint64_t token_;
  std::vector<std::optional<Joined>> joined_;  // by rank; empty for rank 0
};

/// Any other rank: connects to rank 0 and receives the memory.
class PeerRank {
 public:
  PeerRank(const RankInfo& info, const Schedule& schedule) : info_(info), schedule_(schedule) {}

  LocalPeers run(const Announcement& host) {
    const auto socket = LocalSocket::connect(host.socket, schedule_.deadline);
    if (!socket.has_value() || socket->peer_user() != geteuid()) throw_lost(0, info_);
    const PeerProcess own = own_process(info_.rank);
    const Packet hello{.kind = PacketKind::hello,
                       .rank = info_.rank,
                       .process = own.number,
                       .token = host.token,
                       .slot_bytes = SegmentLayout{info_.world_size}.slot_bytes()};
    if (!socket->send(hello, own.descriptor.get(), schedule_.deadline)) throw_lost(0, info_);
    LocalPeers local;
    const ReceivedPacket memory = take(*socket, PacketKind::memory);
    local.segment =
        Segment::map(memory.descriptor.get(), {info_.world_size, memory.packet.num_slots, memory.packet.arena_bytes});
    for (int i = 0; i + 1 < info_.world_size; ++i) {
      ReceivedPacket process = take(*socket, PacketKind::process);
      local.peers.push_back({process.packet.rank, process.packet.process, std::move(process.descriptor)});
    }
    return local;
  }

 private:
  ReceivedPacket take(const LocalSocket& socket, PacketKind kind) const {
    // Rank 0 times out first and names the missing ranks.
    auto received = socket.receive(schedule_.deadline + milliseconds(1000));
    if (!received.has_value()) throw_lost(0, info_);
    if (received->packet.kind == kind && received->descriptor) return std::move(*received);
    throw CommError({.op = "shm",
                     .subject = "world",
                     .fact = received->packet.kind == PacketKind::refusal
                                 ? received->packet.text.data()
                                 : "rank 0 sent no memory (too many open files in this process?)",
                     .where = fmt::format("rank {} of {}", info_.rank, info_.world_size),
                     .action = "see the output of rank 0"});
  }

  const RankInfo& info_;
  const Schedule& schedule_;
};

}  // namespace

LocalPeers connect_local_ranks(const RankInfo& info, Store& store, milliseconds timeout) {
  const Schedule schedule{timeout, steady_clock::now() + timeout};
  if (info.rank != 0) {
    const auto all = exchange(Announcement::own("", 0), info, store, timeout);
    check_one_host(all, info);
    LocalPeers local = PeerRank(info, schedule).run(all.front());
    local.num_cores = count_cores(all);
    return local;
  }
  const LocalSocket listener = LocalSocket::listen(info.world_size);
  const uint64_t token = random_token();
  const auto all = exchange(Announcement::own(listener.name(), token), info, store, timeout);
  check_one_host(all, info);
  size_t max_bytes = all.front().reservable_bytes;
  for (const Announcement& one : all) max_bytes = std::min<size_t>(max_bytes, one.reservable_bytes);
  LocalPeers local = Root(info, store, listener, token).run(max_bytes, schedule);
  local.num_cores = count_cores(all);
  return local;
}

}  // namespace caravan::shared
