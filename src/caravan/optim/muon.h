#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "caravan/optim/optimizer.h"

namespace caravan {

struct MatrixOwners;

struct MuonOptions {
  double momentum = 0.95;
  int64_t newton_schulz_steps = 5;
  AdamWOptions adamw{};  ///< of what is no matrix; its weight decay is also that of matrices
};

/// Muon (Jordan et al., 2024) over many ranks, as Moonlight has it (Liu et al., arXiv 2502.16982): of each matrix,
///
///   v = momentum v + g;  w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, columns)) orthogonal(g + momentum v)
///
/// where orthogonal() replaces singular values by about 1 (optim/newton_schulz.h). The factor gives updates the size
/// that those of AdamW usually have, so that learning rate and weight decay of AdamW fit. What is no matrix is updated
/// by AdamW: vectors, and tables of vectors, such as embeddings and output weights (ParameterSpec::matrices). A matrix
/// is a parameter as checkpoints name it: projections that a layer keeps in one weight are one; each expert is one.
///
/// Values, gradients and state are laid out as for other optimizers: every rank updates what it holds. One rank gets
/// the pieces of a matrix, orthogonalizes it, and sends back what belongs to each (optim/matrix_plan.h: which one;
/// optim/matrix_exchange.h: bytes). At a time a rank has one whole matrix more, the largest of the model at most, with
/// what Newton-Schulz needs for it. Results are the same for all layouts, except for the rounding of gradients.
class Muon final : public Optimizer {
 public:
  /// Every rank of the engine's mesh calls it, and its steps. Throws UsageError, on every rank, for an option outside
  /// its range, for state that rests outside of the device, for tiles, and for layers that are cut unevenly twice.
  explicit Muon(FlatState& state, const MuonOptions& options = {});
  ~Muon() override;

 private:
  bool step_all(double lr, double gradient_scale) override;
  bool keeps(const std::string& moment, const Slot& slot) const override;
  void check_parts() const override;
  void make_state();
  void add_momentum(double gradient_scale);
  void step_matrices(double lr, double gradient_scale);
  void step_others(double lr, double gradient_scale);

  MuonOptions options_;
  std::unique_ptr<MatrixOwners> owners_;
};

}  // namespace caravan
