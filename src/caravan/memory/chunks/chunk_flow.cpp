#include "caravan/memory/chunks/chunk_flow.h"

#include <algorithm>
#include <limits>
#include <queue>

namespace caravan {
namespace {

constexpr int64_t kCostScale = 1 << 12;  ///< parts of a byte in which costs are counted
constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

// Successive shortest paths with potentials.
class CostFlow {
 public:
  explicit CostFlow(int num_nodes) : out_(static_cast<size_t>(num_nodes)), potential_(out_.size(), 0) {}

  int add(int from, int to, int64_t capacity, int64_t cost) {
    const int arc = static_cast<int>(arcs_.size());
    arcs_.push_back({to, capacity, cost});
    arcs_.push_back({from, 0, -cost});
    out_[static_cast<size_t>(from)].push_back(arc);
    out_[static_cast<size_t>(to)].push_back(arc + 1);
    return arc;
  }
  int64_t flow(int arc) const { return arcs_[static_cast<size_t>(arc) + 1].capacity; }

  // Costs may be negative if arcs go from lower nodes to higher ones.
  void run(int source, int sink) {
    start_potentials(source);
    while (find_path(source, sink)) augment(source, sink);
  }

 private:
  struct Arc {
    int to = 0;
    int64_t capacity = 0;
    int64_t cost = 0;
  };

  void start_potentials(int source) {
    std::ranges::fill(potential_, kFar);
    potential_[static_cast<size_t>(source)] = 0;
    for (size_t node = 0; node < out_.size(); ++node)
      for (const int a : out_[node]) {
        const Arc& arc = arcs_[static_cast<size_t>(a)];
        if (arc.capacity > 0 && potential_[node] < kFar)
          potential_[static_cast<size_t>(arc.to)] =
              std::min(potential_[static_cast<size_t>(arc.to)], potential_[node] + arc.cost);
      }
  }

  bool find_path(int source, int sink) {
    distance_.assign(out_.size(), kFar);
    through_.assign(out_.size(), -1);
    using Entry = std::pair<int64_t, int>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    distance_[static_cast<size_t>(source)] = 0;
    queue.emplace(0, source);
    while (!queue.empty()) {
      const auto [distance, node] = queue.top();
      queue.pop();
      if (distance > distance_[static_cast<size_t>(node)]) continue;
      for (const int a : out_[static_cast<size_t>(node)])
        relax(a, distance, potential_[static_cast<size_t>(node)], queue);
    }
    if (distance_[static_cast<size_t>(sink)] >= kFar) return false;
    for (size_t node = 0; node < out_.size(); ++node)
      if (distance_[node] < kFar) potential_[node] += distance_[node];
    return true;
  }

  template <typename Queue>
  void relax(int a, int64_t distance, int64_t potential, Queue& queue) {
    const Arc& arc = arcs_[static_cast<size_t>(a)];
    if (arc.capacity == 0) return;
    const auto to = static_cast<size_t>(arc.to);
    const int64_t next = distance + arc.cost + potential - potential_[to];
    if (next >= distance_[to]) return;
    distance_[to] = next;
    through_[to] = a;
    queue.emplace(next, arc.to);
  }

  void augment(int source, int sink) {
    int64_t amount = kFar;
    for (int node = sink; node != source; node = tail(node))
      amount = std::min(amount, arcs_[static_cast<size_t>(through_[static_cast<size_t>(node)])].capacity);
    for (int node = sink; node != source;) {
      const auto a = static_cast<size_t>(through_[static_cast<size_t>(node)]);
      node = tail(node);
      arcs_[a].capacity -= amount;
      arcs_[a ^ 1].capacity += amount;
    }
  }
  int tail(int node) const { return arcs_[static_cast<size_t>(through_[static_cast<size_t>(node)]) ^ 1].to; }

  std::vector<Arc> arcs_;
  std::vector<std::vector<int>> out_;
  std::vector<int64_t> potential_, distance_;
  std::vector<int> through_;
};

}  // namespace

KeptIntervals keep_intervals(std::span<const RoomInterval> intervals, std::span<const int64_t> room) {
  const int moments = static_cast<int>(room.size());
  const int sink = moments + 2;
  // Node 0 is the source, node m + 1 stands before moment m. Everything flows through every moment: what is not in an
  // interval flows on beside it.
  CostFlow flow(sink + 1);
  int64_t before = 0;
  for (int m = 0; m <= moments; ++m) {
    const int64_t now = m < moments ? room[static_cast<size_t>(m)] : 0;
    if (now > before) flow.add(0, m + 1, now - before, 0);
    if (now < before) flow.add(m + 1, sink, before - now, 0);
    if (m < moments) flow.add(m + 1, m + 2, kFar, 0);
    before = now;
  }
  std::vector<int> arcs;
  double lost = 0;  // by rounding costs down
  for (const RoomInterval& interval : intervals) {
    const int64_t cost = interval.profit * kCostScale / interval.size;
    lost += static_cast<double>(interval.profit) - static_cast<double>(cost * interval.size) / kCostScale;
    arcs.push_back(flow.add(interval.first + 1, interval.last + 2, interval.size, -cost));
  }
  flow.run(0, sink);
  KeptIntervals result{.profit = lost};
  for (size_t i = 0; i < intervals.size(); ++i) {
    const int64_t kept = flow.flow(arcs[i]);
    result.kept.push_back(kept);
    const int64_t cost = intervals[i].profit * kCostScale / intervals[i].size;
    result.profit += static_cast<double>(cost) * static_cast<double>(kept) / kCostScale;
  }
  return result;
}

}  // namespace caravan
