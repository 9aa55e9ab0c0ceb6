#pragma once

#include <memory>

#include "caravan/comm/backends/messages/failure/last_calls.h"
#include "caravan/comm/backends/messages/transport.h"
#include "caravan/comm/group_info.h"

namespace caravan::messages {

/// What a message belongs to, within one communicator and pair of ranks.
enum class Channel : int { collective, point_to_point, send_call, recv_call, shutdown, watch };

/// One rank's view of one communicator: what its tasks work on.
struct Group : GroupInfo {
  std::shared_ptr<Transport> transport;
  int id = 0;  ///< unique among communicators that share a pair of ranks
  bool check = true;
  std::shared_ptr<LastCalls> last_calls;

  explicit Group(GroupInfo info = {}) : GroupInfo(std::move(info)) {}

  int tag(Channel channel) const noexcept { return id * 8 + static_cast<int>(channel); }
};

}  // namespace caravan::messages
