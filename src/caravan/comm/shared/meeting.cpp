#include "caravan/comm/shared/meeting.h"

#include <algorithm>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/announcement.h"
#include "caravan/comm/shared/local_socket.h"

namespace caravan::shared {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{100};

struct Schedule {
  milliseconds timeout;
  Deadline deadline;
};

/// Memory without a name: it goes with the last process that holds it.
Fd new_memory(int num_ranks) {
  Fd fd(memfd_create("caravan", MFD_CLOEXEC));
  if (fd && ftruncate(fd.get(), static_cast<off_t>(Segment::bytes(num_ranks))) == 0) return fd;
  throw ResourceError({.op = "shared memory",
                       .fact = fmt::format("cannot make {} bytes for {} ranks: {}", Segment::bytes(num_ranks),
                                           num_ranks, store_socket::system_error(errno)),
                       .action = "raise the limits of open files and of file size (ulimit -n, ulimit -f)"});
}

uint64_t random_token() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

[[noreturn]] void throw_lost(int rank, const RankInfo& info) {
  throw CommError({.op = "shm",
                   .subject = "world",
                   .fact = fmt::format("rank {} ended while the ranks met", rank),
                   .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                   .action = "look at what that rank says"});
}

/// Rank 0: waits for the others and gives them what they need.
class Host {
 public:
  Host(const RankInfo& info, Store& store, const LocalSocket& listener, uint64_t token)
      : info_(info), store_(store), listener_(listener), token_(token), guests_(static_cast<size_t>(info.world_size)) {}

  std::vector<PeerProcess> run(const Fd& memory, const Schedule& schedule) {
    try {
      while (std::ranges::count_if(guests_, [](const auto& guest) { return guest.has_value(); }) + 1 <
             info_.world_size) {
        let_in(schedule);
      }
      hand_out(memory, schedule);
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
    std::vector<PeerProcess> peers;
    for (auto& guest : guests_) {
      if (guest.has_value()) peers.push_back(std::move(guest->process));
    }
    return peers;
  }

 private:
  struct Guest {
    LocalSocket socket;
    PeerProcess process;
  };

  void let_in(const Schedule& schedule) {
    auto socket = listener_.accept(std::min(schedule.deadline, steady_clock::now() + kLook));
    if (!socket.has_value()) {
      std::vector<int64_t> missing;
      bool somebody_left = false;
      for (int rank = 1; rank < info_.world_size; ++rank) {
        if (guests_[static_cast<size_t>(rank)].has_value()) continue;
        missing.push_back(rank);
        somebody_left = somebody_left || store_.has_left(rank);
      }
      if (!somebody_left && steady_clock::now() < schedule.deadline) return;
      throw_missing(std::move(missing), info_, store_, schedule.timeout);
    }
    // A stranger, or a rank that died at once: it does not count, and must not hold up the others.
    if (socket->peer_user() != geteuid()) return;
    auto hello = socket->receive(std::min(schedule.deadline, steady_clock::now() + milliseconds(1000)));
    if (!hello.has_value() || hello->packet.kind != PacketKind::hello || hello->packet.token != token_) return;
    const Packet& packet = hello->packet;
    if (packet.rank < 1 || packet.rank >= info_.world_size || !hello->descriptor) return;
    if (packet.segment_bytes != Segment::bytes(info_.world_size)) {
      throw UsageError({.op = "shm",
                        .subject = "world",
                        .fact = fmt::format("rank {} is of another build: its memory of the world has {} bytes, that "
                                            "of rank 0 has {}",
                                            packet.rank, packet.segment_bytes, Segment::bytes(info_.world_size)),
                        .where = "rank 0",
                        .action = "run the same build of Caravan on every rank"});
    }
    guests_[static_cast<size_t>(packet.rank)] =
        Guest{std::move(*socket), {packet.rank, packet.process, std::move(hello->descriptor)}};
  }

  void hand_out(const Fd& memory, const Schedule& schedule) {
    const PeerProcess own = own_process(0);
    for (const auto& guest : guests_) {
      if (!guest.has_value()) continue;
      const auto give = [&](const Packet& packet, const Fd& descriptor) {
        if (!guest->socket.send(packet, descriptor.get(), schedule.deadline)) {
          throw_lost(guest->process.world_rank, info_);
        }
      };
      give(Packet{.kind = PacketKind::memory}, memory);
      for (const auto& other : guests_) {
        const PeerProcess& process = other.has_value() ? other->process : own;
        if (process.world_rank == guest->process.world_rank) continue;
        give(Packet{.kind = PacketKind::process, .rank = process.world_rank, .process = process.number},
             process.descriptor);
      }
    }
  }

  void refuse_all(const Error& error) noexcept {
    Packet packet{.kind = PacketKind::refusal};
    packet.set_text(error.text().fact);
    for (const auto& guest : guests_) {
      if (guest.has_value()) guest->socket.send(packet, -1, steady_clock::now() + milliseconds(100));
    }
  }

  const RankInfo& info_;
  Store& store_;
  const LocalSocket& listener_;
  uint64_t token_;
  std::vector<std::optional<Guest>> guests_;  // by rank; that of rank 0 stays empty
};

/// Every other rank. Returns the memory.
class GuestRank {
 public:
  GuestRank(const RankInfo& info, const Schedule& schedule) : info_(info), schedule_(schedule) {}

  Meeting run(const Announcement& host) {
    const auto socket = LocalSocket::connect(host.socket, schedule_.deadline);
    if (!socket.has_value() || socket->peer_user() != geteuid()) throw_lost(0, info_);
    const PeerProcess own = own_process(info_.rank);
    const Packet hello{.kind = PacketKind::hello,
                       .rank = info_.rank,
                       .process = own.number,
                       .token = host.token,
                       .segment_bytes = Segment::bytes(info_.world_size)};
    if (!socket->send(hello, own.descriptor.get(), schedule_.deadline)) throw_lost(0, info_);
    Meeting meeting;
    const ReceivedPacket memory = take(*socket, PacketKind::memory);
    meeting.segment = Segment::map(memory.descriptor.get(), info_.world_size);
    for (int i = 0; i + 1 < info_.world_size; ++i) {
      ReceivedPacket process = take(*socket, PacketKind::process);
      meeting.peers.push_back({process.packet.rank, process.packet.process, std::move(process.descriptor)});
    }
    return meeting;
  }

 private:
  ReceivedPacket take(const LocalSocket& socket, PacketKind kind) const {
    // Rank 0 gives up at its own deadline and says whom it missed.
    auto received = socket.receive(schedule_.deadline + milliseconds(1000));
    if (!received.has_value()) throw_lost(0, info_);
    if (received->packet.kind == kind && received->descriptor) return std::move(*received);
    throw CommError({.op = "shm",
                     .subject = "world",
                     .fact = received->packet.kind == PacketKind::refusal
                                 ? received->packet.text.data()
                                 : "rank 0 sent something else than memory (are too many files open here?)",
                     .where = fmt::format("rank {} of {}", info_.rank, info_.world_size),
                     .action = "look at what rank 0 says"});
  }

  const RankInfo& info_;
  const Schedule& schedule_;
};

}  // namespace

Meeting meet(const RankInfo& info, Store& store, milliseconds timeout) {
  const Schedule schedule{timeout, steady_clock::now() + timeout};
  if (info.rank != 0) {
    const auto all = exchange(Announcement::own("", 0), info, store, timeout);
    check_one_host(all, info);
    return GuestRank(info, schedule).run(all.front());
  }
  const LocalSocket listener = LocalSocket::listen(info.world_size);
  const uint64_t token = random_token();
  const Fd memory = new_memory(info.world_size);
  Meeting meeting{Segment::map(memory.get(), info.world_size), {}};
  meeting.segment->take_slot();  // slot 0: the world
  check_one_host(exchange(Announcement::own(listener.name(), token), info, store, timeout), info);
  meeting.peers = Host(info, store, listener, token).run(memory, schedule);
  return meeting;
}

}  // namespace caravan::shared
