#pragma once

#include <cstdint>

namespace caravan {

/// The factor of a loss in fp16 that keeps small gradients from being rounded to 0; passed as
/// ForwardContext::loss_scale, so it needs no extra pass. Dynamic: halved after a step whose gradients overflow, which
/// is skipped, and doubled after 2,000 steps in a row that do not. It depends on the gradient norm alone, so it is
/// equal on all ranks. (Micikevicius et al., "Mixed precision training", ICLR 2018.)
///
/// In a loop: s = value(); scale the loss by s; norm = grad_norm / s. If update(norm is finite) returns true,
/// Optimizer::step(lr, clip_scale(norm, max_norm) / s). Else skip the update if has_backed_off(), and stop if not.
class LossScale {
 public:
  /// `fixed`: this value throughout; 0: dynamic, from 65536.
  explicit LossScale(double fixed = 0);

  double value() const noexcept { return state_.value; }
  bool is_dynamic() const noexcept { return is_dynamic_; }
  int64_t num_skipped() const noexcept { return state_.num_skipped; }
  /// Call it with the norm of each step. Returns whether the step counts. Also false where no smaller scale helps: the
  /// scale is fixed, or 1.
  bool update(bool is_finite) noexcept;
  /// After update() returned false: whether the next step may succeed with a smaller scale.
  bool has_backed_off() const noexcept { return has_backed_off_; }

  /// The state that a checkpoint keeps.
  struct State {
    double value = 0;
    int64_t num_good = 0;  ///< steps since the last change
    int64_t num_skipped = 0;
  };
  const State& state() const noexcept { return state_; }
  void set_state(const State& state) noexcept { state_ = state; }

 private:
  bool is_dynamic_;
  bool has_backed_off_ = false;
  State state_;
};

}  // namespace caravan
