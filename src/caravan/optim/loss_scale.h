#pragma once

#include <cstdint>

namespace caravan {

/// What a loss in fp16 is multiplied by, so that small gradients are not rounded to 0; ForwardContext::loss_scale
/// takes it, so no extra pass multiplies. Dynamic: halved after a step whose gradients overflow, which is skipped,
/// and doubled after 2,000 steps in a row that do not. The norm decides, which is equal on all ranks: so is the
/// scale. (Micikevicius et al., "Mixed precision training", ICLR 2018.)
///
/// In a loop: s = value(); scale the loss by s; norm = grad_norm / s. If update(norm is finite) returns true,
/// Optimizer::step(lr, clip_scale(norm, max_norm) / s). Else skip the update if has_backed_off(); if not, give up.
class LossScale {
 public:
  /// `fixed`: this value throughout; 0: dynamic, from 65536.
  explicit LossScale(double fixed = 0);

  double value() const noexcept { return state_.value; }
  bool is_dynamic() const noexcept { return is_dynamic_; }
  int64_t num_skipped() const noexcept { return state_.num_skipped; }
  /// After the norm of a step is known. Returns whether the step counts. False too where no smaller scale helps: the
  /// scale is fixed, or 1.
  bool update(bool is_finite) noexcept;
  /// After update() returned false: whether the next step may do better, with a smaller scale.
  bool has_backed_off() const noexcept { return has_backed_off_; }

  /// What a checkpoint keeps.
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
