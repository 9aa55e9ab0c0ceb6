#include "caravan/techniques/context/ring_schedule.h"

#include <tuple>

#include <fmt/format.h>

#include "caravan/base/checked_once.h"

namespace caravan {
namespace {

std::string_view text_of(RingStep::Kind kind) {
  switch (kind) {
    case RingStep::Kind::send_keys: return "send keys";
    case RingStep::Kind::recv_keys: return "receive keys";
    case RingStep::Kind::wait_keys: return "wait for keys";
    case RingStep::Kind::compute: return "compute";
    case RingStep::Kind::add: return "add gradients";
    case RingStep::Kind::send_sums: return "send sums";
    case RingStep::Kind::recv_sums: return "receive sums";
    case RingStep::Kind::wait_sums: return "wait for sums";
  }
  return "";
}

}  // namespace

std::string to_string(const RingStep& step) { return fmt::format("{} of turn {}", text_of(step.kind), step.turn); }

std::vector<RingStep> ring_schedule(int n, bool is_backward, bool overlaps) {
  using enum RingStep::Kind;
  std::vector<RingStep> steps;
  // The only places that add messages, so that a rank sends in the order in which the next one receives.
  const auto exchange_keys = [&](int turn) { steps.insert(steps.end(), {{send_keys, turn}, {recv_keys, turn}}); };
  const auto exchange_sums = [&](int turn) { steps.insert(steps.end(), {{send_sums, turn}, {recv_sums, turn}}); };
  for (int turn = 0; turn < n; ++turn) {
    const bool has_next = turn + 1 < n;
    if (has_next && overlaps) exchange_keys(turn + 1);
    steps.push_back({compute, turn});
    if (is_backward) {
      if (turn > 0 && overlaps) steps.push_back({wait_sums, turn});
      steps.push_back({add, turn});
      exchange_sums(turn + 1);
      if (!overlaps || !has_next) steps.push_back({wait_sums, turn + 1});
    }
    if (has_next && !overlaps) exchange_keys(turn + 1);
    if (has_next) steps.push_back({wait_keys, turn + 1});
  }
  return steps;
}

std::vector<RingStep> checked_ring_schedule(int n, bool is_backward, bool overlaps) {
  static CheckedOnce<std::tuple<int, bool, bool>, std::vector<RingStep>> checked;
  return checked.get({n, is_backward, overlaps}, [&] {
    std::vector<RingStep> table = ring_schedule(n, is_backward, overlaps);
    check_ring(std::vector<std::span<const RingStep>>(static_cast<size_t>(n), table), is_backward);
    return table;
  });
}

}  // namespace caravan
