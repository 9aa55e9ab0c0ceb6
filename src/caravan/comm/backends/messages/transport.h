#pragma once

#include <cstddef>
#include <memory>

namespace caravan::messages {

/// A message in flight, in one direction. The memory is free once this is destroyed. If it is destroyed before the
/// message has arrived, the connection to that peer may be useless (see Staging).
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns true when the message has arrived, or, for a send, when its memory may be written again; false if
  /// interrupted. Throws if the connection is lost.
  virtual bool wait() = 0;
  /// Ends one wait(): the current one, or the next. May be called from any thread.
  virtual void interrupt() noexcept = 0;
};

/// Connections between all ranks of a world. The n-th message sent under a tag is received by the n-th recv of that
/// rank under it, which gives the same number of bytes (not 0). May be called from any thread. Throws if the connection
/// is lost.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) = 0;
  virtual std::unique_ptr<Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) = 0;
  /// Whether a recv from a rank whose process has ended throws soon.
  virtual bool reports_lost_peers() const noexcept { return true; }
  /// Called when every rank has announced that it sends nothing more, and everything that was sent has arrived.
  virtual void all_delivered() noexcept {}
};

}  // namespace caravan::messages
