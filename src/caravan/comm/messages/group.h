#pragma once

#include <memory>

#include "caravan/comm/group_seat.h"
#include "caravan/comm/messages/last_calls.h"
#include "caravan/comm/messages/transport.h"

namespace caravan::messages {

/// What a message belongs to, within one communicator and pair of ranks.
enum class Channel : int { collective, mail, mail_call, mail_answer, goodbye, watch };

/// One rank's place in one communicator.
struct Seat : GroupSeat {
  std::shared_ptr<Transport> transport;
  int id = 0;  ///< of the communicator: no two that share a pair of ranks have the same
  bool check = true;
  std::shared_ptr<LastCalls> last_calls;

  int tag(Channel channel) const noexcept { return id * 8 + static_cast<int>(channel); }
};

}  // namespace caravan::messages
