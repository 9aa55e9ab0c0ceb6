#include "caravan/comm/backends/hierarchical/topology.h"

#include <algorithm>

namespace caravan::hierarchical {

Topology::Topology(std::span<const int> host_of) {
  std::vector<int> numbers;  // the given ones, by host
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    const int number = host_of[static_cast<size_t>(rank)];
    const auto found = std::ranges::find(numbers, number);
    const auto index = static_cast<size_t>(found - numbers.begin());
    if (found == numbers.end()) {
      numbers.push_back(number);
      ranks.emplace_back();
    }
    host.push_back(static_cast<int>(index));
    local_rank.push_back(static_cast<int>(ranks[index].size()));
    ranks[index].push_back(rank);
  }
}

bool Topology::is_uniform() const noexcept {
  return std::ranges::all_of(ranks, [&](const auto& of_host) { return of_host.size() == ranks.front().size(); });
}

bool Topology::is_contiguous() const noexcept { return std::ranges::is_sorted(host); }

std::vector<int> Topology::cross_ranks(int of_local_rank) const {
  std::vector<int> result;
  for (const std::vector<int>& of_host : ranks) {
    if (static_cast<size_t>(of_local_rank) < of_host.size()) {
      result.push_back(of_host[static_cast<size_t>(of_local_rank)]);
    }
  }
  return result;
}

std::vector<int> Topology::by_host() const {
  std::vector<int> order;
  for (const std::vector<int>& of_host : ranks) order.insert(order.end(), of_host.begin(), of_host.end());
  return order;
}

std::vector<int> Topology::by_local_rank() const {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(ranks.front().size()); ++i) {
    const std::vector<int> cross = cross_ranks(i);
    order.insert(order.end(), cross.begin(), cross.end());
  }
  return order;
}

}  // namespace caravan::hierarchical
