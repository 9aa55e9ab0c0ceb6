#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/average_tensor.h"
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
  /// Keeps an exponential moving average of the trained values beside them, as further state, "average": after step t
  /// it is d average + (1 - d) values, with d = min(decay, (1 + t) / (10 + t)), so that a short run does not remember
  /// its initial values. Call it before the first step. Throws UsageError for a decay outside [0, 1).
  void keep_average(double decay);
  bool keeps_average() const noexcept { return keeps_average_; }
  /// Whether exchange_average() works: values and state are on the device.
  bool can_exchange_average() const { return keeps_average_ && state_.tiers == nullptr; }
  /// Exchanges the values with their average, for an evaluation; a second call restores them. Sends nothing.
  void exchange_average();

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
    UpdateRule rule{};   ///< its lr_factor is already part of the learning rate
    int64_t number = 1;  ///< step number, from 1

    /// The weight decay of the parameters, with that of the optimizer.
    double decay(double of_optimizer) const { return rule.weight_decay.value_or(decays ? of_optimizer : 0); }
  };
  /// Element-wise: the same bits however the state is cut. Returns whether it has also written the copies. It may
  /// run on another thread until ~Optimizer: it holds what it needs by value.
  using Update = std::function<bool(const Part& part, double lr, double gradient_scale)>;
  /// `state` must outlive the optimizer. torch's version counters see its updates. `names`: of its moments, which are
  /// zero in the first step.
  Optimizer(FlatState& state, const std::vector<std::string>& names, Update update);
  struct OptionRange {
    double low = 0;
    double high = 1;
    bool has_high = true;
  };
  /// Throws UsageError for an option outside its range.
  static void check_option(const char* key, double value, const OptionRange& range);

  /// Step num_steps() of all that rests on the device. Returns whether the copies of all values are written too.
  virtual bool step_all(double lr, double gradient_scale);
  /// Whether state() has this moment of a trained parameter.
  virtual bool keeps(const std::string& /*moment*/, const Slot& /*slot*/) const { return true; }
  /// Throws for an optimizer that cannot update one bucket or group after another.
  virtual void check_parts() const {}
  /// Before and after a step of an optimizer that does not update all values by its Update. Nothing without an average.
  void begin_average();
  void add_to_average();

  FlatState& state_;
  std::vector<std::pair<std::string, FlatMemory>> moments_;

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

  Update update_;
  bool keeps_average_ = false;
  double average_decay_ = 0;
  int64_t num_steps_ = 0;
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
  /// Throws as the constructor.
  static void check(const AdamWOptions& options);

 private:
  friend class Muon;  // whose vectors AdamW updates
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
