#include "caravan/comm/backends/shared/calls/rounds.h"

#include <algorithm>

#include "caravan/comm/backends/relax.h"
#include "caravan/comm/backends/shared/calls/compare_calls.h"

namespace caravan::shared {

bool Rounds::calls_match(uint64_t round) const {
  bool equal = true;
  for (int rank = 0; rank < state_.size; ++rank) {
    const LineData& data = data_of(rank, round);
    equal &= data.call == own_.call && data.size == own_.size;
  }
  return equal;
}

void Rounds::write_full_call() const {
  const Operation& op = operation();
  state_.region.call(state_.rank, round_) = call();
  std::ranges::copy(op.send_counts, state_.region.send_counts(state_.rank, round_).begin());
  std::ranges::copy(op.recv_counts, state_.region.recv_counts(state_.rank, round_).begin());
}

void Rounds::publish() {
  round_ = ++state_.round;
  Line& line = state_.region.line(state_.rank, round_);
  if (calls_ == Calls::differ) {
    write_full_call();
  } else {
    write(round_, step_);
    if (step_ == 0) line.data = own_;
  }
  Doorbell::publish(line.round, round_);
  prefetch_for_store(&state_.region.line(state_.rank, round_ + 1));  // the peers have the line of two rounds ago
  state_.ring_others();
  published_ = true;
  next_ = 0;
}

bool Rounds::all_have_published() {
  while (next_ < state_.size && (next_ == state_.rank || has_published(next_))) ++next_;
  return next_ == state_.size;
}

bool Rounds::advance() {
  bool moved = false;
  while (true) {
    if (!published_) {
      publish();
      moved = true;
    }
    if (!all_have_published()) return moved;
    if (calls_ == Calls::differ) throw_difference(state_, call(), round_);
    if (calls_ == Calls::unchecked) {
      calls_ = calls_match(round_) ? Calls::match : Calls::differ;
      if (calls_ == Calls::differ) {
        published_ = false;
        moved = true;
        continue;
      }
    }
    switch (read(round_, step_)) {
      case Next::same: return true;
      case Next::round:
        published_ = false;
        moved = true;
        ++step_;
        break;
      case Next::end: finished_ = true; return true;
    }
  }
}

std::vector<int> Rounds::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < state_.size; ++rank) {
    if (published_ && !has_published(rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace caravan::shared
