#include "caravan/comm/shared/split.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/shared/compare_calls.h"

namespace caravan::shared {
namespace {

constexpr int64_t kNobody = -1;  // fills the lists of members up

std::span<const int64_t> without_padding(std::span<const int64_t> list) {
  return list.first(static_cast<size_t>(std::ranges::find(list, kNobody) - list.begin()));
}

bool equal_or_disjoint(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::ranges::equal(a, b) || std::ranges::find_first_of(a, b) == a.end();
}

}  // namespace

Operation SplitTask::make_operation(std::span<const int> members, int size, std::string_view name) {
  Operation operation;
  std::memcpy(operation.what.data(), name.data(), std::min(name.size(), operation.what.size() - 1));
  operation.send_counts.assign(members.begin(), members.end());
  operation.send_counts.resize(static_cast<size_t>(size), kNobody);
  return operation;
}

Descriptor SplitTask::call() const {
  Descriptor descriptor = describe(operation());
  descriptor.verb = kSplitCall;
  return descriptor;
}

void SplitTask::write(uint64_t round, int64_t step) {
  if (step == 0) {
    own_line(round).call = kSplitCall;
    own_line(round).size = 0;
    seat_.region.call(seat_.rank, round) = call();
    std::ranges::copy(members(), seat_.region.send_counts(seat_.rank, round).begin());
    return;
  }
  const std::span<const int64_t> part = without_padding(members());
  const bool leads = part.front() == seat_.rank && part.size() > 1;
  seat_.region.send_counts(seat_.rank, round)[0] = leads ? seat_.segment->take_slot() : -1;
}

Rounds::Next SplitTask::read(uint64_t round, int64_t step) {
  if (step == 0) {
    compare_calls(seat_, call(), round);
    result_.overlap = find_overlap(round);
    return result_.overlap.empty() ? Next::round : Next::end;
  }
  const int leader = static_cast<int>(members().front());
  result_.slot = static_cast<int>(seat_.region.send_counts(leader, round)[0]);
  return Next::end;
}

std::string SplitTask::find_overlap(uint64_t round) const {
  for (int a = 0; a < seat_.size; ++a) {
    for (int b = a + 1; b < seat_.size; ++b) {
      const std::span<const int64_t> of_a = without_padding(seat_.region.send_counts(a, round));
      const std::span<const int64_t> of_b = without_padding(seat_.region.send_counts(b, round));
      if (equal_or_disjoint(of_a, of_b)) continue;
      return fmt::format("rank {} gives the members [{}], rank {} gives [{}]", a, join(of_a), b, join(of_b));
    }
  }
  return "";
}

}  // namespace caravan::shared
