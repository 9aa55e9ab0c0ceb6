#pragma once

#include <string>
#include <vector>

namespace caravan {

/// One rank's place in one communicator, as far as errors speak of it: the base of every engine's own seat.
struct GroupSeat {
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< of the ranks of this communicator

  /// `rank 1 of 4 of "tp"`, for errors.
  std::string text() const;
};

}  // namespace caravan
