#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/gloo_transport.h"

namespace caravan::gloo {

/// What a message belongs to, within one communicator and pair of ranks.
enum class Channel : int { collective, mail, mail_call, mail_answer, goodbye };

/// One rank's place in one communicator.
struct Seat {
  std::shared_ptr<Transport> transport;
  int id = 0;  ///< of the communicator: no two that share a pair of ranks have the same
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< of the ranks of this communicator
  bool check = true;

  int tag(Channel channel) const noexcept { return id * 8 + static_cast<int>(channel); }
  /// `rank 1 of 4 of "tp"`, for errors.
  std::string text() const;
};

}  // namespace caravan::gloo
