#include "caravan/comm/shared/rounds.h"

#include <algorithm>

#include "caravan/comm/shared/compare_calls.h"

namespace caravan::shared {

bool Rounds::calls_fit(uint64_t round) const {
  const Line& own = own_line(round);
  bool equal = true;
  for (int rank = 0; rank < seat_.size; ++rank) {
    const Line& line = seat_.region.line(rank, round);
    equal &= line.call == own.call && line.size == own.size;
  }
  return equal;
}

void Rounds::show_whole_call() const {
  const Operation& op = operation();
  seat_.region.call(seat_.rank, round_) = call();
  std::ranges::copy(op.send_counts, seat_.region.send_counts(seat_.rank, round_).begin());
  std::ranges::copy(op.recv_counts, seat_.region.recv_counts(seat_.rank, round_).begin());
}

void Rounds::publish() {
  round_ = ++seat_.round;
  if (calls_ == Calls::differ) {
    show_whole_call();
  } else {
    write(round_, step_);
  }
  own_line(round_).round.store(round_, std::memory_order_seq_cst);  // see Note [no lost wake-up]
  seat_.ring_others();
  published_ = true;
  next_ = 0;
}

bool Rounds::everybody_has_published() {
  while (next_ < seat_.size && (next_ == seat_.rank || has_published(next_))) ++next_;
  return next_ == seat_.size;
}

bool Rounds::advance() {
  bool moved = false;
  while (true) {
    if (!published_) {
      publish();
      moved = true;
    }
    if (!everybody_has_published()) return moved;
    if (calls_ == Calls::differ) throw_difference(seat_, call(), round_);
    if (calls_ == Calls::unseen) {
      calls_ = calls_fit(round_) ? Calls::fit : Calls::differ;
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
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (published_ && !has_published(rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace caravan::shared
