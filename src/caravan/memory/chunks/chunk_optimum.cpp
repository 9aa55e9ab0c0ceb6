#include "caravan/memory/chunks/chunk_optimum.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>

#include "caravan/memory/chunks/chunk_flow.h"
#include "caravan/memory/chunks/chunk_gaps.h"

namespace caravan {
namespace {

enum class GapChoice : uint8_t { open, stays, leaves };

struct SearchNode {
  double bound = 0;
  std::vector<GapChoice> gaps;  ///< by gap
  std::vector<bool> is_paid;    ///< by version: written back whatever its gaps do
  std::vector<double> shares;   ///< by gap: its part of the write-back of its version, 0 to 1
  bool operator<(const SearchNode& other) const noexcept { return bound > other.bound; }  // least bound first
};

class OptimumSearch {
 public:
  explicit OptimumSearch(const ChunkTrace& trace) : trace_(trace), gaps_(gaps_of(trace)) {
    for (const int64_t bytes : trace.chunk_bytes) unit_ = std::gcd(unit_, bytes);
    unit_ = std::max<int64_t>(unit_, 1);
    gaps_of_version_.resize(gaps_.version_bytes.size());
    for (size_t g = 0; g < gaps_.gaps.size(); ++g)
      if (gaps_.gaps[g].version >= 0) gaps_of_version_[static_cast<size_t>(gaps_.gaps[g].version)].push_back(g);
    room_ = trace.budget_bytes;
    const std::vector<int64_t> used = trace.used_bytes();
    for (size_t m = 0; m < room_.size(); ++m) room_[m] = (room_[m] - used[m]) / unit_;
  }

  ChunkOptimum run(int most_nodes) {
    for (const ChunkPolicy policy : {ChunkPolicy::recorded, ChunkPolicy::latest, ChunkPolicy::lru}) {
      ChunkPlan plan = plan_moves(trace_, policy);
      if (result_.plan.moves.empty() || plan.moved_bytes() < result_.plan.moved_bytes()) result_.plan = std::move(plan);
    }
    upper_ = result_.plan.moved_bytes();
    search(most_nodes);
    if (!best_keeps_.empty()) result_.plan = plan_moves(trace_, best_keeps_);
    return std::move(result_);
  }

 private:
  struct Flow {
    double bound = 0;
    bool is_possible = true;
    std::vector<double> kept;  ///< by gap, 0 to 1
  };

  void search(int most_nodes) {
    std::priority_queue<SearchNode> open;
    SearchNode root{.gaps = std::vector<GapChoice>(gaps_.gaps.size(), GapChoice::open),
                    .is_paid = std::vector<bool>(gaps_.version_bytes.size(), false),
                    .shares = std::vector<double>(gaps_.gaps.size(), 0)};
    for (const std::vector<size_t>& of : gaps_of_version_)
      for (const size_t g : of) root.shares[g] = 1.0 / static_cast<double>(of.size());
    open.push(std::move(root));
    double cut = static_cast<double>(upper_);  // the least bound of what is not searched
    while (!open.empty() && result_.num_nodes < most_nodes && rounded(open.top().bound) < upper_) {
      SearchNode node = open.top();
      open.pop();
      ++result_.num_nodes;
      expand(std::move(node), open);
    }
    if (!open.empty()) cut = std::min(cut, open.top().bound);
    result_.lower_bytes = std::min(rounded(cut), upper_);
  }

  // All costs are multiples of the unit.
  int64_t rounded(double bound) const {
    return static_cast<int64_t>(std::ceil(bound / static_cast<double>(unit_) - 1e-6)) * unit_;
  }

  void expand(SearchNode node, std::priority_queue<SearchNode>& open) {
    const int rounds = result_.num_nodes == 1 ? 100 : 20;
    Flow best = solve(node);
    Flow now = best;
    std::vector<double> best_shares = node.shares;
    double step = 0.5;
    for (int round = 0; round < rounds && now.is_possible && rounded(best.bound) < upper_; ++round, step *= 0.95) {
      if (!move_shares(node, now.kept, step)) break;
      now = solve(node);
      if (now.bound <= best.bound) continue;
      best = now;
      best_shares = node.shares;
    }
    if (!best.is_possible || rounded(best.bound) >= upper_) return;
    node.bound = std::max(node.bound, best.bound);
    node.shares = std::move(best_shares);
    branch(node, best.kept, open);
  }

  int64_t version_bytes(size_t gap) const { return gaps_.version_bytes[static_cast<size_t>(gaps_.gaps[gap].version)]; }
  bool is_shared(const SearchNode& node, size_t gap) const {
    const int version = gaps_.gaps[gap].version;
    return version >= 0 && !node.is_paid[static_cast<size_t>(version)];
  }

  Flow solve(const SearchNode& node) {
    Flow flow{.bound = static_cast<double>(gaps_.unavoidable_bytes), .kept = std::vector<double>(gaps_.gaps.size(), 0)};
    std::vector<int64_t> room = room_;
    std::vector<RoomInterval> intervals;
    std::vector<size_t> gap_of_interval;
    for (size_t v = 0; v < node.is_paid.size(); ++v)
      if (node.is_paid[v]) flow.bound += static_cast<double>(gaps_.version_bytes[v]);
    for (size_t g = 0; g < gaps_.gaps.size(); ++g) {
      const ChunkGap& gap = gaps_.gaps[g];
      const int64_t size = trace_.chunk_bytes[static_cast<size_t>(gap.chunk)] / unit_;
      if (node.gaps[g] == GapChoice::stays || gap.to == gap.from + 1) {
        flow.kept[g] = 1;
        for (int m = gap.from + 1; m < gap.to; ++m)
          if ((room[static_cast<size_t>(m)] -= size) < 0) flow.is_possible = false;
        continue;
      }
      const double share = is_shared(node, g) ? node.shares[g] * static_cast<double>(version_bytes(g)) : 0;
      const double cost = static_cast<double>(gap.fetch_bytes) + std::floor(share);
      flow.bound += cost;
      if (node.gaps[g] == GapChoice::leaves) continue;
      intervals.push_back(
          {.first = gap.from + 1, .last = gap.to - 1, .size = size, .profit = static_cast<int64_t>(cost)});
      gap_of_interval.push_back(g);
    }
    if (!flow.is_possible) return flow;
    const KeptIntervals kept = keep_intervals(intervals, room);
    flow.bound -= kept.profit;
    for (size_t i = 0; i < intervals.size(); ++i)
      flow.kept[gap_of_interval[i]] = static_cast<double>(kept.kept[i]) / static_cast<double>(intervals[i].size);
    offer(flow.kept);
    return flow;
  }

  // What the flow keeps wholly is a plan.
  void offer(const std::vector<double>& kept) {
    int64_t bytes = gaps_.unavoidable_bytes;
    std::vector<bool> is_written(gaps_.version_bytes.size(), false);
    for (size_t g = 0; g < kept.size(); ++g) {
      if (kept[g] >= 1) continue;
      bytes += gaps_.gaps[g].fetch_bytes;
      const int version = gaps_.gaps[g].version;
      if (version < 0 || is_written[static_cast<size_t>(version)]) continue;
      is_written[static_cast<size_t>(version)] = true;
      bytes += version_bytes(g);
    }
    if (bytes >= upper_) return;
    upper_ = bytes;
    // Where no gap asks for it, the plan decides by itself.
    best_keeps_.assign(trace_.uses.size(), true);
    for (size_t g = 0; g < kept.size(); ++g)
      if (kept[g] < 1) best_keeps_[static_cast<size_t>(gaps_.gaps[g].use)] = false;
    for (size_t u = 0; u < trace_.uses.size(); ++u)
      if (gaps_.gap_of_use[u] < 0) best_keeps_[u] = false;
  }

  // A subgradient step: more of a write-back to the gaps that leave, less to those that stay.
  bool move_shares(SearchNode& node, const std::vector<double>& kept, double step) const {
    bool has_moved = false;
    for (const std::vector<size_t>& of : gaps_of_version_) {
      if (of.size() < 2 || !is_shared(node, of.front())) continue;
      double mean = 0;
      for (const size_t g : of) mean += (1 - kept[g]) / static_cast<double>(of.size());
      double sum = 0;
      for (const size_t g : of) {
        node.shares[g] = std::max(0.0, node.shares[g] + step * (1 - kept[g] - mean));
        sum += node.shares[g];
      }
      for (const size_t g : of) node.shares[g] = sum > 0 ? node.shares[g] / sum : 1.0 / static_cast<double>(of.size());
      has_moved = has_moved || (mean > 0 && mean < 1);
    }
    return has_moved;
  }

  void branch(const SearchNode& node, const std::vector<double>& kept, std::priority_queue<SearchNode>& open) const {
    for (size_t g = 0; g < kept.size(); ++g) {
      if (kept[g] <= 0 || kept[g] >= 1) continue;
      SearchNode stays = node;
      stays.gaps[g] = GapChoice::stays;
      SearchNode leaves = node;
      set_leaves(leaves, g);
      open.push(std::move(stays));
      open.push(std::move(leaves));
      return;
    }
    // The version of which the flow pays the least part.
    double least = 2;
    size_t chosen = 0;
    for (size_t v = 0; v < gaps_of_version_.size(); ++v) {
      if (node.is_paid[v]) continue;
      double paid = 0;
      bool leaves = false;
      for (const size_t g : gaps_of_version_[v])
        if (kept[g] < 1) {
          paid += node.shares[g];
          leaves = true;
        }
      if (!leaves || paid >= least) continue;
      least = paid;
      chosen = v;
    }
    if (least > 1 - 1e-9) return;  // the bound is the cost of the plan that the flow has offered
    SearchNode paid = node;
    paid.is_paid[chosen] = true;
    SearchNode stay = node;
    for (const size_t g : gaps_of_version_[chosen]) stay.gaps[g] = GapChoice::stays;
    open.push(std::move(paid));
    open.push(std::move(stay));
  }

  void set_leaves(SearchNode& node, size_t g) const {
    node.gaps[g] = GapChoice::leaves;
    if (gaps_.gaps[g].version >= 0) node.is_paid[static_cast<size_t>(gaps_.gaps[g].version)] = true;
  }

  const ChunkTrace& trace_;
  ChunkGaps gaps_;
  int64_t unit_ = 0;
  std::vector<std::vector<size_t>> gaps_of_version_;
  std::vector<int64_t> room_;  ///< by moment, in units, beside what is used
  int64_t upper_ = 0;
  std::vector<bool> best_keeps_;
  ChunkOptimum result_;
};

}  // namespace

ChunkOptimum optimal_moves(const ChunkTrace& trace, int most_nodes) {
  trace.validate();
  return OptimumSearch(trace).run(most_nodes);
}

}  // namespace caravan
