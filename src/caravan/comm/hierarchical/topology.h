#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace caravan::hierarchical {

/// Where the ranks of one communicator sit. Hosts are numbered in the order of their first ranks.
struct Topology {
  std::vector<int> host;                ///< by rank
  std::vector<int> place;               ///< by rank: among those of its host; place 0 is the leader
  std::vector<std::vector<int>> ranks;  ///< by host, in the order of their places

  /// `host_of` is any number for a host, by rank.
  explicit Topology(std::span<const int> host_of);

  int num_hosts() const noexcept { return static_cast<int>(ranks.size()); }
  int size() const noexcept { return static_cast<int>(host.size()); }
  /// Hosts have equal numbers of ranks: each place is there on every host.
  bool is_uniform() const noexcept;
  /// Host after host is rank after rank.
  bool is_contiguous() const noexcept;
  bool has_one_host() const noexcept { return num_hosts() == 1; }
  bool has_single_ranks() const noexcept { return num_hosts() == size(); }
  /// The ranks of one place, host after host; for place 0 of all hosts.
  std::vector<int> level(int place) const;
  /// All ranks, host after host, or place after place (of uniform hosts).
  std::vector<int> by_host() const;
  std::vector<int> by_place() const;
};

}  // namespace caravan::hierarchical
