#pragma once

#include <cstddef>
#include <memory>

namespace caravan::messages {

/// A message on its way, in one direction. Its memory is not touched any more once this is destroyed; destroyed before
/// it has come, it may leave the connection to that peer useless (see Staging).
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns true when the message has come, or its memory may be written again; false if interrupted.
  /// Throws if the connection is lost.
  virtual bool wait() = 0;
  /// Ends one wait(): the one going on, or the next. From any thread.
  virtual void interrupt() noexcept = 0;
};

/// Connections between all ranks of a world. The n-th message sent under a tag is received by the n-th recv of that
/// rank under it, which gives the same number of bytes (not 0). Any thread. Throws if the connection is lost.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) = 0;
  virtual std::unique_ptr<Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) = 0;
  /// Whether a recv from a rank whose process has ended throws, and soon.
  virtual bool reports_lost_peers() const noexcept { return true; }
  /// Told when every rank has said that it will send nothing more, and all that was sent has come.
  virtual void end_well() noexcept {}
};

}  // namespace caravan::messages
