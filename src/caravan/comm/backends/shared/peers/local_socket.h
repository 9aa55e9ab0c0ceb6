#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "caravan/base/system/fd.h"

namespace caravan::shared {

using Deadline = std::chrono::steady_clock::time_point;

enum class PacketKind : uint32_t { hello, memory, process, refusal };

/// A message between processes of one host before they share memory: plain bytes.
struct Packet {
  PacketKind kind = PacketKind::hello;
  int32_t rank = -1;
  int32_t process = 0;  ///< its process id, for error messages
  uint32_t unused = 0;
  uint64_t token = 0;
  uint64_t slot_bytes = 0;   ///< hello: equal in equal builds
  uint64_t num_slots = 0;    ///< memory: its layout
  uint64_t arena_bytes = 0;  ///< memory: its layout
  std::array<char, 992> text{};

  void set_text(std::string_view from) noexcept;
};

struct ReceivedPacket {
  Packet packet;
  Fd descriptor;  ///< sent along, if any
};

/// A Unix socket that also carries file descriptors. Its name is in the abstract namespace and disappears with it.
class LocalSocket {
 public:
  /// Under a free name that the kernel chooses. Throws ResourceError.
  static LocalSocket listen(int backlog);
  /// Empty if nobody listens on `name` by the deadline. Throws ResourceError if no socket can be opened.
  static std::optional<LocalSocket> connect(const std::string& name, Deadline deadline);

  /// Printable text.
  std::string name() const;
  /// Empty if nobody connects before the deadline.
  std::optional<LocalSocket> accept(Deadline deadline) const;
  /// The user id of the connected process.
  uid_t peer_user() const;

  /// Also sends a copy of `descriptor` unless it is -1. False if the peer is gone or does not read in time.
  bool send(const Packet& packet, int descriptor, Deadline deadline) const;
  /// Empty if the peer is gone, sends anything but a Packet, or sends nothing in time.
  std::optional<ReceivedPacket> receive(Deadline deadline) const;

 private:
  explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace caravan::shared
