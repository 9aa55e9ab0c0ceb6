#include "caravan/comm/backends/shared/split.h"

#include <algorithm>
#include <vector>

#include "caravan/comm/members.h"

namespace caravan::shared {
Descriptor SplitTask::call() const {
  Descriptor descriptor = describe(operation());
  descriptor.verb = kSplitCall;
  return descriptor;
}

void SplitTask::write(uint64_t round, int64_t step) {
  if (step == 0) {
    own_.call = kSplitCall;
    std::ranges::copy(members(), state_.region.send_counts(state_.rank, round).begin());
    return;
  }
  const std::span<const int64_t> part = without_padding(members());
  const bool leads = part.front() == state_.rank && part.size() > 1;
  state_.region.send_counts(state_.rank, round)[0] = leads ? state_.segment->take_slot() : -1;
}

Rounds::Next SplitTask::read(uint64_t round, int64_t step) {
  if (step == 0) {
    std::vector<std::span<const int64_t>> lists;
    for (int rank = 0; rank < state_.size; ++rank) lists.push_back(state_.region.send_counts(rank, round));
    result_.overlap = find_overlap(lists);
    return result_.overlap.empty() ? Next::round : Next::end;
  }
  const int leader = static_cast<int>(members().front());
  result_.slot = static_cast<int>(state_.region.send_counts(leader, round)[0]);
  return Next::end;
}

}  // namespace caravan::shared
