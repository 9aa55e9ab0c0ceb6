#include "caravan/cost/extend_timeline.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace caravan {
namespace {

using Moment = StepTimeline::Moment;

/// A moment that can be compared with one of another timeline, and repeated.
struct Relative {
  Moment::Kind kind;
  /// Of a wait, how many calls ago that call began; else the number of a kernel or call among all that differ.
  int64_t number;
  bool operator==(const Relative&) const = default;
};

/// Numbers of kernels and calls of several timelines, equal for equal ones. Labels of messages name micro-batches, and
/// do not count.
class Numbers {
 public:
  std::vector<Relative> of(const StepTimeline& timeline) {
    std::vector<int64_t> kernels;
    for (const KernelWork& work : timeline.kernels) kernels.push_back(number(kernels_, work));
    std::vector<Relative> all;
    all.reserve(timeline.moments.size());
    int64_t begun = 0;
    for (const Moment& moment : timeline.moments) {
      const auto index = static_cast<size_t>(moment.index);
      switch (moment.kind) {
        case Moment::Kind::kernel: all.push_back({moment.kind, kernels[index]}); break;
        case Moment::Kind::begin: {
          const StepTimeline::Call& call = timeline.calls[index];
          all.push_back({moment.kind, number(calls_, CallKey(call.axis, call.verb, call.sent_bytes, call.peer))});
          ++begun;
          break;
        }
        case Moment::Kind::end: all.push_back({moment.kind, begun - moment.index}); break;
      }
    }
    return all;
  }

 private:
  using CallKey = std::tuple<std::string, Verb, double, int>;
  template <class Key>
  static int64_t number(std::map<Key, int64_t>& numbers, const Key& key) {
    return numbers.try_emplace(key, static_cast<int64_t>(numbers.size())).first->second;
  }
  std::map<KernelWork, int64_t> kernels_;
  std::map<CallKey, int64_t> calls_;
};

/// "activation for stage 1": messages of repeated micro-batches meet in their order.
std::string without_micro_batch(const std::string& label) {
  const size_t begin = label.find(" of micro-batch ");
  if (begin == std::string::npos) return label;
  const size_t end = label.find(" for ", begin);
  return end == std::string::npos ? label.substr(0, begin) : label.substr(0, begin) + label.substr(end);
}

/// Appends moments of `from`, whose `relative` are these, to a timeline with the events and kernels of `from`.
void append(StepTimeline& to, const StepTimeline& from, const std::vector<Relative>& relative, size_t begin,
            size_t end) {
  for (size_t i = begin; i < end; ++i) {
    Moment moment = from.moments[i];
    if (moment.kind == Moment::Kind::begin) {
      StepTimeline::Call call = from.calls[static_cast<size_t>(moment.index)];
      call.what = without_micro_batch(call.what);
      to.calls.push_back(std::move(call));
      moment.index = static_cast<int32_t>(to.calls.size()) - 1;
    } else if (moment.kind == Moment::Kind::end) {
      moment.index = static_cast<int32_t>(static_cast<int64_t>(to.calls.size()) - relative[i].number);
    }
    to.moments.push_back(moment);
  }
}

}  // namespace

std::optional<StepTimeline> extend_timeline(const StepTimeline& few, const StepTimeline& more, int64_t times) {
  Numbers numbers;
  const std::vector<Relative> a = numbers.of(few), b = numbers.of(more);
  if (b.size() < a.size()) return std::nullopt;
  const auto same = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const size_t block = b.size() - a.size();
  const bool is_inserted = std::equal(a.begin() + static_cast<std::ptrdiff_t>(same), a.end(),
                                      b.begin() + static_cast<std::ptrdiff_t>(same + block));
  if (!is_inserted) return std::nullopt;
  StepTimeline extended{.events = more.events, .kernels = more.kernels, .calls = {}, .moments = {}};
  append(extended, more, b, 0, same);
  for (int64_t i = 0; i < times; ++i) append(extended, more, b, same, same + block);
  append(extended, more, b, same + block, b.size());
  return extended;
}

}  // namespace caravan
