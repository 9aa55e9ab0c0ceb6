#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "caravan/comm/store_socket.h"

namespace caravan::shared {

using store_socket::Deadline;
using store_socket::Fd;

enum class PacketKind : uint32_t { hello, memory, process, refusal };

/// What processes of one host tell each other before they share memory: plain bytes.
struct Packet {
  PacketKind kind = PacketKind::hello;
  int32_t rank = -1;
  int32_t process = 0;  ///< its number, for messages
  uint32_t unused = 0;
  uint64_t token = 0;
  uint64_t segment_bytes = 0;
  std::array<char, 992> text{};

  void set_text(std::string_view from) noexcept;
};

struct ReceivedPacket {
  Packet packet;
  Fd descriptor;  ///< that came with it, if any
};

/// A socket between processes of one host that also carries file descriptors. Its name lives in the kernel only (the
/// abstract namespace) and goes with it.
class LocalSocket {
 public:
  /// Under a fresh name that the kernel chooses. Throws ResourceError.
  static LocalSocket listen(int backlog);
  /// Throws ResourceError without a socket; empty if nobody listens under `name` by then.
  static std::optional<LocalSocket> connect(const std::string& name, Deadline deadline);

  /// As text that can be stored anywhere.
  std::string name() const;
  /// Empty if nobody comes before the deadline.
  std::optional<LocalSocket> accept(Deadline deadline) const;
  /// The user of the process on the other side.
  uid_t peer_user() const;

  /// Sends a copy of `descriptor` too, unless it is -1. False if the other side is gone or does not read in time.
  bool send(const Packet& packet, int descriptor, Deadline deadline) const;
  /// Empty if the other side is gone, sends something else, or nothing in time.
  std::optional<ReceivedPacket> receive(Deadline deadline) const;

 private:
  explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace caravan::shared
