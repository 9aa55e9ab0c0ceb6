#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "caravan/optim/optimizer.h"

namespace caravan {

namespace kernels {
struct AdafactorStep;
}
class FactoredMoments;
struct FactoredParameter;

struct AdafactorOptions {
  double decay_exponent = 0.8;  ///< second moments of step t decay by 1 - t^-decay_exponent
  double epsilon1 = 1e-30;      ///< added to squares of gradients
  double clip_threshold = 1;    ///< largest root mean square of an update
  double momentum = 0;          ///< 0: none, and no state for it
  double weight_decay = 0.1;    ///< of parameters that decay
  /// Multiplies the learning rate of a parameter by the root mean square of its elements, at least 1e-3.
  bool scale_by_parameter = false;
};

/// Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", arXiv 1804.04235, over many
/// ranks. The second moments of a matrix are two vectors: R, of its rows, and C, of its columns. In step t, with
/// b = 1 - t^-decay_exponent, for row i and column j of a gradient g:
///
///   R_i = b R_i + (1 - b) (mean of g² of the row + epsilon1);  C_j likewise
///   u = g / sqrt(R_i C_j / mean(R));  u = u / max(1, RMS(u) / clip_threshold)
///   w = w (1 - lr weight_decay) - lr u
///
/// With momentum, the average of lr u takes the place of lr u: a = momentum a + (1 - momentum) lr u. This is Adafactor
/// of Hugging Face's transformers with relative_step = False, scale_parameter = scale_by_parameter, and weight decay by
/// lr. Every parameter of two dims is a matrix, also tables of vectors; each expert is one. RMS is that of the whole
/// parameter. Other parameters have a second moment for each element in place of R_i C_j / mean(R).
///
/// Values, gradients and the state of single elements are laid out as for other optimizers. Each rank squares what it
/// holds; ranks of a pipeline stage add up the sums of all rows and columns in one all-reduce, and the squares of
/// updates in a second one, of a number for each parameter (two with scale_by_parameter). Every rank keeps all R and C.
/// Results are the same for all layouts, except for rounding.
class Adafactor final : public Optimizer {
 public:
  /// Every rank of the engine's mesh calls it, and its steps. Throws UsageError, on every rank, for an option outside
  /// its range, for state that rests outside of the device, and for tiles.
  explicit Adafactor(FlatState& state, const AdafactorOptions& options = {});
  ~Adafactor() override;

  /// Visits R and C too, which are not in state().
  void walk(const Visit& visit) override;

 private:
  struct Step;
  struct Held;
  bool step_all(double lr, double gradient_scale) override;
  bool keeps(const std::string& moment, const Slot& slot) const override;
  void check_parts() const override;
  Held held(const FactoredParameter& of) const;
  at::Tensor move_factored(const Step& step) const;
  at::Tensor squares_of_updates(const Step& step) const;
  void update(const Step& step, const at::Tensor& squares) const;
  void sweep(const Step& step, const FactoredParameter& of, const Held& held,
             const kernels::AdafactorStep& numbers) const;

  AdafactorOptions options_;
  std::unique_ptr<FactoredMoments> factored_;
};

}  // namespace caravan
