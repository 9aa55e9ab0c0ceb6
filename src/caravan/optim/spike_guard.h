#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace caravan {

/// Tells which steps to skip because their loss or gradient norm is far above those before. It compares both with the
/// mean and the standard deviation of the last kWindow steps, skipped ones left out, once there are kLeast. It depends
/// on numbers that all ranks have, so all decide alike.
///
/// After kMostInARow skipped steps in a row it forgets the steps before and learns the new level, so that a run cannot
/// stand still.
class SpikeGuard {
 public:
  static constexpr size_t kWindow = 100;
  static constexpr int64_t kLeast = 20;
  static constexpr int64_t kMostInARow = 10;

  /// Skips what is more than `deviations` standard deviations above the mean; more than 0.
  explicit SpikeGuard(double deviations) : deviations_(deviations) {}

  /// Call it once a step with its finite loss and gradient norm. Why the step is to be skipped; "": it is not.
  std::string why_skipped(double loss, double grad_norm);
  int64_t num_skipped() const noexcept { return state_.num_skipped; }

  /// The state that a checkpoint keeps: in fp32, so that a resumed run has the same numbers.
  struct State {
    std::array<float, kWindow> losses{};
    std::array<float, kWindow> norms{};
    int64_t count = 0;  ///< steps in the window
    int64_t next = 0;   ///< where the next one goes
    int64_t num_in_a_row = 0;
    int64_t num_skipped = 0;
  };
  const State& state() const noexcept { return state_; }
  void set_state(const State& state) noexcept { state_ = state; }

 private:
  std::string far_above(const char* name, double value, const std::array<float, kWindow>& before) const;

  double deviations_;
  State state_;
};

}  // namespace caravan
