#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/training_state.h"

namespace caravan {

/// Updates flat values from flat gradients. Local: sharded parameters and their gradients have the same layout, so
/// every rank updates what it holds and sends nothing. The state is flat like the values, in fp32 or the values' dtype
/// if that is wider.
class Optimizer : public StateOwner {
 public:
  /// One step with learning rate `lr` and the gradients times `gradient_scale` (for clipping). Reads the gradients and
  /// keeps no reference to them.
  void step(double lr, double gradient_scale = 1);
  /// Step `number`, from 1, of the elements of one bucket that this rank holds. Does not change num_steps(): a caller
  /// that updates bucket by bucket sets it.
  void step(const Bucket& bucket, int64_t number, double lr, double gradient_scale = 1);

  int64_t num_steps() const noexcept { return num_steps_; }
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }
  /// The flat state tensors, readable and writable, under their names in a checkpoint: {"exp_avg", ..}, {"exp_avg_sq",
  /// ..}; {"momentum", ..}.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() const = 0;
  /// Visits the pieces of state() of each trained parameter. num_steps() is not among them.
  void walk(const Visit& visit) override;

 protected:
  /// `state` must outlive the optimizer. torch's version counters see its updates.
  explicit Optimizer(FlatState& state) : state_(state) { state.is_versioned = true; }
  /// The elements of the flat state that one update covers. No range of the layout lies partly inside.
  struct Part {
    int64_t offset = 0;
    int64_t count = 0;
    int64_t number = 1;  ///< step number, from 1
    bool covers(const FlatLayout::Range& range) const noexcept {
      return range.offset >= offset && range.offset + range.count <= offset + count;
    }
  };
  /// Returns whether it has also written this part of state.copies, wherever they have memory.
  virtual bool update(const Part& part, double lr, double gradient_scale) = 0;

  FlatState& state_;
  int64_t num_steps_ = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of parameters that decay
};

/// Flat tensors of equal size: a contiguous part of the state.
struct AdamWPart {
  at::Tensor values;
  at::Tensor gradients;  ///< of the dtype of the values, or bf16
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor copies{};  ///< copies of the values, bf16; undefined: none
};

/// Step number `step`, from 1, of one part in one sweep; bitwise independent of how the state is cut. For optimizers
/// whose state is stored elsewhere.
void adamw_step(const AdamWOptions& options, int64_t step, double lr, double gradient_scale, bool decays,
                const AdamWPart& part);

/// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019. One sweep over values,
/// gradients and moments, which also writes the copies that layers compute with.
class AdamW final : public Optimizer {
 public:
  /// Throws UsageError for an option outside its range.
  explicit AdamW(FlatState& state, const AdamWOptions& options = {});
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

 private:
  bool update(const Part& part, double lr, double gradient_scale) override;

  AdamWOptions options_;
  at::Tensor exp_avg_;
  at::Tensor exp_avg_sq_;
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
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

 private:
  bool update(const Part& part, double lr, double gradient_scale) override;

  SgdOptions options_;
  at::Tensor momentum_;  ///< undefined without momentum
};

}  // namespace caravan
