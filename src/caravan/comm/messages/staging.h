#pragma once

#include <cstddef>
#include <memory>

#include "caravan/comm/messages/transport.h"

namespace caravan::messages {

/// A Transport over another one, whose messages may be given up before they have come.
///
/// Note [messages that are given up]: a transfer that is destroyed on its way, after a time-out or a failure elsewhere,
/// has been announced to the peer already, and nothing takes that back. gloo's connection stops reading for ever once
/// the peer sends into a buffer that is gone, and with it all other communicators of that pair of ranks. So messages of
/// up to kStagedBytes, among them all that go out before a peer is known to come (what the ranks called), travel from
/// and to memory of the transport's own, which stays until they have come or the connections close. A larger one that
/// is given up breaks the connection: everything sent to or expected of that peer later is an error at once.
class Staging final : public Transport {
 public:
  static constexpr size_t kStagedBytes = 64 * 1024;

  explicit Staging(std::shared_ptr<Transport> under);
  std::unique_ptr<Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override;
  std::unique_ptr<Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override;
  bool reports_lost_peers() const noexcept override;
  void end_well() noexcept override;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace caravan::messages
