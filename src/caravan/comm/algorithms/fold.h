#pragma once

#include <bit>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

/// Reduces n ranks to a power of two: of the first 2 (n - 2^k) ranks each even one first sends its input to the next
/// rank (one step, x bytes), is idle, and gets the result in the end (one step, x bytes). The others are the actors
/// 0 .. 2^k - 1, in rank order.
class Fold {
 public:
  Fold(int rank, int size)
      : rank_(rank),
        num_actors_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        num_idle_(size - num_actors_) {}

  int num_actors() const noexcept { return num_actors_; }
  /// Steps from actor 0 to 2^k - 1 at distances 1, 2, 4, ..: k.
  int num_levels() const noexcept { return std::countr_zero(static_cast<unsigned>(num_actors_)); }
  bool is_needed() const noexcept { return num_idle_ > 0; }
  bool is_idle() const noexcept { return is_paired() && rank_ % 2 == 0; }
  int actor() const noexcept { return is_paired() ? rank_ / 2 : rank_ - num_idle_; }
  int rank_of(int actor) const noexcept { return actor < num_idle_ ? 2 * actor + 1 : actor + num_idle_; }

  void send_input(MessagePlan& plan, size_t step, Range range) const {
    if (!is_paired()) return;
    if (is_idle()) plan.send(step, rank_ + 1, range);
    if (!is_idle()) plan.add(step, rank_ - 1, range);
  }
  void send_result(MessagePlan& plan, size_t step, Range range) const {
    if (!is_paired()) return;
    if (is_idle()) plan.recv(step, rank_ + 1, range);
    if (!is_idle()) plan.send(step, rank_ - 1, range);
  }

 private:
  bool is_paired() const noexcept { return rank_ < 2 * num_idle_; }

  int rank_;
  int num_actors_;
  int num_idle_;
};

}  // namespace caravan::algorithms
