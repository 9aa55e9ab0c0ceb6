#pragma once

#include <span>
#include <string>
#include <vector>

namespace caravan {

/// One rank's view of one communicator: what error messages name.
struct GroupInfo {
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< of the ranks of this communicator

  /// The world: its ranks are their own world ranks.
  static GroupInfo of_world(int rank, int size);
  /// Rank `rank` of a part of this communicator, whose ranks here are `members`.
  GroupInfo part(std::span<const int> members, int rank, std::string name) const;

  /// `rank 1 of 4 of "tp"`, for errors.
  std::string text() const;
};

}  // namespace caravan
