#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

/// A set of elements, kept as disjoint ranges that do not touch each other.
class Intervals {
 public:
  void add(Range range) {
    if (range.count == 0) return;
    int64_t begin = range.begin;
    int64_t end = range.end();
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second >= begin) --next;
    while (next != ends_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ends_.erase(next);
    }
    ends_.emplace(begin, end);
  }

  /// The parts of `range` that are not in the set, in order.
  std::vector<Range> gaps(Range range) const {
    std::vector<Range> gaps;
    int64_t at = range.begin;
    auto next = ends_.upper_bound(at);
    if (next != ends_.begin()) at = std::max(at, std::prev(next)->second);
    for (; at < range.end() && next != ends_.end() && next->first < range.end(); ++next) {
      gaps.push_back({at, next->first - at});
      at = next->second;
    }
    if (at < range.end()) gaps.push_back({at, range.end() - at});
    return gaps;
  }

  /// The parts of `range` that are in the set, in order.
  std::vector<Range> common(Range range) const {
    std::vector<Range> common;
    int64_t at = range.begin;
    for (const Range& gap : gaps(range)) {
      if (at < gap.begin) common.push_back({at, gap.begin - at});
      at = gap.end();
    }
    if (at < range.end()) common.push_back({at, range.end() - at});
    return common;
  }

 private:
  std::map<int64_t, int64_t> ends_;  // by begin
};

}  // namespace caravan::algorithms
