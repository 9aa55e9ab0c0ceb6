#include "caravan/techniques/server/worker_clocks.h"

#include <algorithm>

namespace caravan {

WorkerClocks::WorkerClocks(std::vector<int64_t> clocks, int64_t staleness, int64_t drain_at)
    : clocks_(std::move(clocks)), states_(clocks_.size(), State::working), staleness_(staleness), drain_at_(drain_at) {}

int64_t WorkerClocks::slowest() const noexcept { return *std::min_element(clocks_.begin(), clocks_.end()); }

bool WorkerClocks::is_drained() const noexcept {
  return std::ranges::all_of(states_, [](State state) { return state == State::drained; });
}

void WorkerClocks::ask(int worker, int64_t clock, bool wants_drain) {
  clocks_[static_cast<size_t>(worker)] = clock;
  states_[static_cast<size_t>(worker)] = State::asking;
  is_draining_ = is_draining_ || wants_drain || slowest() >= drain_at_;
}

std::vector<WorkerClocks::Due> WorkerClocks::take_answers() {
  std::vector<Due> due;
  const int64_t slow = slowest();
  for (size_t i = 0; i < clocks_.size(); ++i) {
    if (states_[i] != State::asking) continue;
    const int64_t lead = clocks_[i] - slow;
    if (is_draining_) {
      states_[i] = State::drained;
      due.push_back({static_cast<int>(i), Answer::drain});
    } else if (staleness_ == kUnbounded || lead <= staleness_) {
      states_[i] = State::working;
      largest_lead_ = std::max(largest_lead_, lead);
      due.push_back({static_cast<int>(i), Answer::go});
    }
  }
  return due;
}

ShardClock::ShardClock(std::vector<int64_t> clocks, int64_t staleness)
    : clocks_(std::move(clocks)), read_(clocks_.size(), 0), staleness_(staleness) {}

int64_t ShardClock::slowest() const noexcept { return *std::min_element(clocks_.begin(), clocks_.end()); }

int64_t ShardClock::apply(int worker) noexcept {
  ++clocks_[static_cast<size_t>(worker)];
  return version_++ - read_[static_cast<size_t>(worker)];
}

bool ShardClock::may_read(int worker) const noexcept {
  return staleness_ == kUnbounded || clocks_[static_cast<size_t>(worker)] - slowest() <= staleness_;
}

}  // namespace caravan
