#pragma once

#include <span>
#include <vector>

namespace caravan::hierarchical {

/// The hosts of the ranks of one communicator. Hosts are numbered in the order of their first ranks.
struct Topology {
  std::vector<int> host;                ///< by rank
  std::vector<int> local_rank;          ///< by rank: its index on its host; local rank 0 is the leader
  std::vector<std::vector<int>> ranks;  ///< by host, in the order of their local ranks

  /// `host_of[rank]` is any number that identifies the rank's host.
  explicit Topology(std::span<const int> host_of);

  int num_hosts() const noexcept { return static_cast<int>(ranks.size()); }
  int size() const noexcept { return static_cast<int>(host.size()); }
  /// All hosts have the same number of ranks.
  bool is_uniform() const noexcept;
  /// The ranks of each host are consecutive.
  bool is_contiguous() const noexcept;
  bool has_one_host() const noexcept { return num_hosts() == 1; }
  bool has_single_ranks() const noexcept { return num_hosts() == size(); }
  /// The ranks with this local rank, in the order of their hosts. For local rank 0 these are the leaders of all hosts.
  std::vector<int> cross_ranks(int of_local_rank) const;
  /// All ranks, ordered by host, or by local rank (of uniform hosts).
  std::vector<int> by_host() const;
  std::vector<int> by_local_rank() const;
};

}  // namespace caravan::hierarchical
