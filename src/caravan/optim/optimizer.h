#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/flat/tier_sweep.h"
#include "caravan/engine/training_state.h"

namespace caravan {

/// Updates flat values from flat gradients. Local: sharded parameters and their gradients have the same layout, so
/// every rank updates what it holds and sends nothing. The state is flat like the values, in fp32 or the values' dtype
/// if that is wider. State that rests on host or disk is swept there by the host (engine/flat/tier_sweep.h); if only
/// values or gradients are away, they are fetched bucket by bucket.
class Optimizer : public StateOwner {
 public:
  /// One step with learning rate `lr` and the gradients times `gradient_scale` (for clipping). Reads the gradients and
  /// keeps no reference to them.
  void step(double lr, double gradient_scale = 1);
  /// Starts such a step. Where the host steps the optimizer, it does so on another thread, in forward order, while the
  /// caller goes on. Units that an engine runs and readers of FlatMemory wait for what they need (FlatMemory::set_use);
  /// read tensors of the module itself after finish() only. A delayed step (Strategy::delay_after) leaves the copies
  /// that layers compute with as they were before it.
  void start_step(double lr, double gradient_scale = 1);
  /// Waits for a started step; throws its error.
  void finish();
  /// Step `number`, from 1, of the elements of one bucket that this rank holds. Does not change num_steps(): a caller
  /// that updates bucket by bucket sets it.
  void step(const Bucket& bucket, int64_t number, double lr, double gradient_scale = 1);

  int64_t num_steps() const noexcept { return num_steps_; }
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }
  /// The flat state under its names in a checkpoint: {"exp_avg", ..}, {"exp_avg_sq", ..}; {"momentum", ..}.
  const std::vector<std::pair<std::string, FlatMemory>>& state() const noexcept { return moments_; }
  /// Visits the pieces of state() of each trained parameter. num_steps() is not among them.
  void walk(const Visit& visit) override;

  /// With Strategy::steps_early: begins a step of groups, which counts once, and begins to step the buckets of one,
  /// whose gradients are on the device, after those of the group before are done. Call finish() after the last.
  void begin_groups() { ++num_steps_; }
  using Gradient = std::function<at::Tensor(const Bucket&)>;
  void step_group(int group, const Gradient& gradient_of, double lr);

 protected:
  /// Flat tensors of equal size: a contiguous part of the state whose parameters are treated alike.
  struct Part {
    at::Tensor values;
    at::Tensor gradients;  ///< of the dtype of the values, or bf16
    std::vector<at::Tensor> moments;
    at::Tensor copies;  ///< copies of the values in another dtype, or of the same; undefined: none
    bool decays = true;
    int64_t number = 1;  ///< step number, from 1
  };
  /// Element-wise: the same bits however the state is cut. Returns whether it has also written the copies. It may
  /// run on another thread until ~Optimizer: it holds what it needs by value.
  using Update = std::function<bool(const Part& part, double lr, double gradient_scale)>;
  /// `state` must outlive the optimizer. torch's version counters see its updates. `names`: of its moments, which are
  /// zero in the first step.
  Optimizer(FlatState& state, const std::vector<std::string>& names, Update update);
  template <class F>
  static void sweep_elements(const Part& part, const F& f);

 private:
  /// Whether some of what a step needs rests outside of the device.
  bool is_away() const;
  bool step_range(const FlatLayout::Range& range, int64_t number, double lr, double gradient_scale);
  void start_delayed_step(double lr, double gradient_scale);
  std::vector<const Bucket*> in_forward_order() const;
  std::vector<TierSweep::Source> sources(const Gradient& gradient_of, bool updates, bool copies);
  void sweep(std::optional<int> group, const Gradient& gradient_of, double lr, double gradient_scale);
  void update_swept(const TierSweep::Part& swept, int64_t number, double lr, double gradient_scale) const;
  template <class Write>
  void change_values(const Write& write);

  FlatState& state_;
  Update update_;
  int64_t num_steps_ = 0;
  std::vector<std::pair<std::string, FlatMemory>> moments_;
  std::vector<size_t> first_use_;     ///< by group: its first unit
  std::unique_ptr<TierSweep> sweep_;  ///< last: uses the others
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of parameters that decay
};

/// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019. One sweep over values,
/// gradients and moments, which also writes the copies that layers compute with.
class AdamW final : public Optimizer {
 public:
  /// Throws UsageError for an option outside its range.
  explicit AdamW(FlatState& state, const AdamWOptions& options = {});

 private:
  static bool update(const Part& part, const AdamWOptions& options, double lr, double gradient_scale);
};

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;  ///< for parameters that decay; added to the gradient, as torch::optim::SGD does
};

/// v = momentum v + g + weight_decay w; w = w - lr v. In the first step v is the gradient; no dampening.
class Sgd final : public Optimizer {
 public:
  /// Throws UsageError for an option outside its range.
  explicit Sgd(FlatState& state, const SgdOptions& options = {});

 private:
  static bool update(const Part& part, const SgdOptions& options, double lr, double gradient_scale);
};

}  // namespace caravan
