#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/backends/messages/transport.h"

namespace caravan::messages {

/// A Transport over another one whose messages may be abandoned before they have arrived.
///
/// Note [abandoned messages]: a transfer that is destroyed in flight, after a time-out or a failure elsewhere, has
/// already been announced to the peer, and cannot be taken back. gloo's connection stops reading forever once the peer
/// sends into a buffer that is gone, which blocks all other communicators of that pair of ranks. So messages of up to
/// kStagedBytes, including all that are sent before the peer is known to have joined (the comparison of calls), go
/// through the transport's own memory, which is kept until they have arrived or the connections close. Abandoning a
/// larger message breaks the connection: every later send to or recv from that peer fails at once.
class Staging final : public Transport {
 public:
  static constexpr size_t kStagedBytes = 64 * 1024;

  explicit Staging(std::shared_ptr<Transport> under);
  std::unique_ptr<Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override;
  std::unique_ptr<Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override;
  bool reports_lost_peers() const noexcept override;
  void all_delivered() noexcept override;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace caravan::messages
