#pragma once

#include <bit>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

/// n ranks made a power of two: of the first 2 (n - 2^k) ranks each even one gives its input to the next rank before
/// (a step, x bytes), stands aside, and gets the result after (a step, x bytes). The others are the actors 0 .. 2^k -
/// 1, in the order of their ranks.
class Fold {
 public:
  Fold(int rank, int size)
      : rank_(rank),
        num_actors_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        num_aside_(size - num_actors_) {}

  int num_actors() const noexcept { return num_actors_; }
  /// Steps from actor 0 to 2^k - 1 at distances 1, 2, 4, ..: k.
  int num_levels() const noexcept { return std::countr_zero(static_cast<unsigned>(num_actors_)); }
  bool is_needed() const noexcept { return num_aside_ > 0; }
  bool stands_aside() const noexcept { return is_paired() && rank_ % 2 == 0; }
  int actor() const noexcept { return is_paired() ? rank_ / 2 : rank_ - num_aside_; }
  int rank_of(int actor) const noexcept { return actor < num_aside_ ? 2 * actor + 1 : actor + num_aside_; }

  void give_input(Schedule& schedule, size_t step, Range range) const {
    if (!is_paired()) return;
    if (stands_aside()) schedule.send(step, rank_ + 1, range);
    if (!stands_aside()) schedule.add(step, rank_ - 1, range);
  }
  void give_result(Schedule& schedule, size_t step, Range range) const {
    if (!is_paired()) return;
    if (stands_aside()) schedule.recv(step, rank_ + 1, range);
    if (!stands_aside()) schedule.send(step, rank_ - 1, range);
  }

 private:
  bool is_paired() const noexcept { return rank_ < 2 * num_aside_; }

  int rank_;
  int num_actors_;
  int num_aside_;
};

}  // namespace caravan::algorithms
