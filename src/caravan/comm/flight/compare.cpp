#include "caravan/comm/flight/compare.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/flight/groups.h"

namespace caravan {
namespace {

using At = FlightLine::At;

/// The records of the ranks that take part in one operation.
using Lines = std::vector<const FlightLine*>;

bool same_call(const Descriptor& a, const Descriptor& b) {
  if (is_message(a) && is_message(b)) return a.dtype == b.dtype && a.count == b.count;
  if (a.verb != b.verb) return false;
  if (a.verb == kSplitCall) return true;
  const auto verb = static_cast<Verb>(a.verb);
  const bool reduces_data = verb == Verb::all_reduce || verb == Verb::reduce_scatter || verb == Verb::reduce;
  const bool is_rooted = verb == Verb::broadcast || verb == Verb::reduce;
  if (verb == Verb::barrier) return true;
  if (a.dtype != b.dtype || (reduces_data && a.op != b.op) || (is_rooted && a.root != b.root)) return false;
  return !(verb == Verb::all_reduce || is_rooted) || a.count == b.count;  // sizes may differ by rank
}

std::string list(const std::vector<int>& ranks) {
  const std::vector<int64_t> numbers(ranks.begin(), ranks.end());
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", join(numbers));
}

double seconds_in(const FlightReport& report, const FlightEntry& entry) {
  return static_cast<double>(report.written_ns - entry.begin_ns) * 1e-9;
}

/// One operation, and the records of the ranks that take part in it.
class Step {
 public:
  Step(const Lines& lines, uint64_t sequence) : lines_(lines), sequence_(sequence) {}

  std::optional<FlightFinding> different() const;
  std::optional<FlightFinding> unfinished() const;

 private:
  FlightFinding finding(Divergence kind, std::vector<int> ranks, std::string text) const;
  template <typename Predicate>
  std::vector<int> ranks_where(Predicate&& predicate) const {
    std::vector<int> ranks;
    for (const FlightLine* line : lines_) {
      const FlightEntry* entry = line->entry(sequence_);
      if (entry != nullptr && predicate(*entry)) ranks.push_back(line->report->rank);
    }
    return ranks;
  }
  double longest_s() const;
  const FlightEntry* any() const;

  const Lines& lines_;
  uint64_t sequence_;
};

const FlightEntry* Step::any() const {
  for (const FlightLine* line : lines_) {
    if (const FlightEntry* entry = line->entry(sequence_)) return entry;
  }
  return nullptr;
}

double Step::longest_s() const {
  double longest = 0;
  for (const FlightLine* line : lines_) {
    const FlightEntry* entry = line->entry(sequence_);
    if (entry != nullptr) longest = std::max(longest, seconds_in(*line->report, *entry));
  }
  return longest;
}

FlightFinding Step::finding(Divergence kind, std::vector<int> ranks, std::string text) const {
  FlightFinding found{kind, any()->group.name.data(), sequence_, INT64_MAX, std::move(ranks), std::move(text)};
  for (const FlightLine* line : lines_) {
    const FlightEntry* entry = line->entry(sequence_);
    if (entry != nullptr) found.when_ns = std::min(found.when_ns, line->report->unix_ns(entry->begin_ns));
  }
  return found;
}

std::optional<FlightFinding> Step::different() const {
  std::vector<std::pair<const FlightEntry*, std::vector<int>>> sides;
  for (const FlightLine* line : lines_) {
    const FlightEntry* entry = line->entry(sequence_);
    if (entry == nullptr) continue;
    const auto same =
        std::ranges::find_if(sides, [&](const auto& side) { return same_call(side.first->call, entry->call); });
    if (same != sides.end()) {
      same->second.push_back(line->report->rank);
    } else {
      sides.push_back({entry, {line->report->rank}});
    }
  }
  if (sides.size() < 2) return std::nullopt;
  std::string text;
  for (const auto& [entry, ranks] : sides) {
    text += fmt::format("{}{} called {}", text.empty() ? "" : "; ", list(ranks), to_string(entry->call));
  }
  std::ranges::reverse(sides);  // among sides of equal size, the one with later ranks
  const auto fewest = std::ranges::min_element(sides, {}, [](const auto& side) { return side.second.size(); });
  return finding(Divergence::different_calls, fewest->second, std::move(text));
}

std::optional<FlightFinding> Step::unfinished() const {
  const FlightEntry* call = any();
  const std::vector<int> open = ranks_where([](const FlightEntry& entry) { return entry.state != FlightState::done; });
  std::vector<int> absent;
  std::string instead;
  for (const FlightLine* line : lines_) {
    if (line->at(sequence_) != At::not_begun) continue;
    absent.push_back(line->report->rank);
    instead += fmt::format("; {}", doing_instead(*line->report));
    if (line->report->written_by != line->report->rank) {
      instead += fmt::format(" (as rank {} saw it)", line->report->written_by);
    }
  }
  // A message may be sent long before it is received.
  if (!absent.empty() && !(is_message(call->call) && open.empty())) {
    std::string text =
        fmt::format("{} was begun by {} {:.1f} s before the end, not by {}{}", to_string(call->call),
                    list(ranks_where([](const FlightEntry&) { return true; })), longest_s(), list(absent), instead);
    return finding(Divergence::not_begun, absent, std::move(text));
  }
  if (open.empty()) return std::nullopt;
  const std::vector<int> done = ranks_where([](const FlightEntry& entry) { return entry.state == FlightState::done; });
  std::string text = fmt::format("{} was begun {:.1f} s before the end and has no result on {}", to_string(call->call),
                                 longest_s(), list(open));
  if (!done.empty()) text += fmt::format("; {} {} it", list(done), done.size() == 1 ? "has" : "have");
  return finding(Divergence::not_completed, open, std::move(text));
}

/// The first difference in these records, otherwise the first operation that is not complete.
std::optional<FlightFinding> first_divergence(const Lines& lines) {
  std::set<uint64_t> sequences;
  for (const FlightLine* line : lines) {
    for (const auto& [sequence, entry] : line->entries) sequences.insert(sequence);
  }
  for (const uint64_t sequence : sequences) {
    if (auto found = Step(lines, sequence).different()) return found;
  }
  for (const uint64_t sequence : sequences) {
    if (auto found = Step(lines, sequence).unfinished()) return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<FlightFinding> compare_flights(std::span<const FlightReport> reports) {
  std::vector<FlightFinding> findings;
  const auto look_at = [&](const Lines& lines) {
    if (auto found = first_divergence(lines)) findings.push_back(std::move(*found));
  };
  for (const auto& [identity, members] : group_flights(reports)) {
    Lines lines;
    for (const FlightLine& line : members.collectives) lines.push_back(&line);
    look_at(lines);
    for (const auto& [pair, sides] : members.messages) look_at({&sides.first, &sides.second});
  }
  std::ranges::stable_sort(findings, [](const FlightFinding& a, const FlightFinding& b) {
    return std::pair(a.kind, a.when_ns) < std::pair(b.kind, b.when_ns);
  });
  return findings;
}

}  // namespace caravan
