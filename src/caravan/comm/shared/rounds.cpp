#include "caravan/comm/shared/rounds.h"

namespace caravan::shared {

bool Rounds::everybody_has_read(uint64_t round) const {
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (seat_.region.flags(rank).read.load(std::memory_order_seq_cst) < round) return false;
  }
  return true;
}

bool Rounds::everybody_has_posted(uint64_t round) const {
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (seat_.region.flags(rank).posted.load(std::memory_order_seq_cst) < round) return false;
  }
  return true;
}

bool Rounds::advance() {
  RankFlags& own = seat_.region.flags(seat_.rank);
  bool moved = false;
  while (true) {
    if (!posted_) {
      const uint64_t next = seat_.round + 1;
      if (next > 2 && !everybody_has_read(next - 2)) return moved;
      round_ = ++seat_.round;
      write(round_, step_);
      own.posted.store(round_, std::memory_order_seq_cst);  // see Note [no lost wake-up]
      seat_.ring_others();
      posted_ = true;
      moved = true;
    }
    if (!everybody_has_posted(round_)) return moved;
    const bool last = read(round_, step_);
    own.read.store(round_, std::memory_order_seq_cst);
    seat_.ring_others();
    posted_ = false;
    ++step_;
    if (last) {
      finished_ = true;
      return true;
    }
  }
}

std::vector<int> Rounds::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < seat_.size; ++rank) {
    const RankFlags& flags = seat_.region.flags(rank);
    const bool late = posted_ ? flags.posted.load(std::memory_order_acquire) < round_
                              : flags.read.load(std::memory_order_acquire) + 1 < seat_.round;
    if (late) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace caravan::shared
