#include "caravan/comm/shared/rounds.h"

namespace caravan::shared {

void Rounds::publish() {
  round_ = ++seat_.round;
  write(round_, step_);
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
