#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/experts/route.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

/// Statistics of a router's training forwards.
struct RouterLoad {
  std::vector<double> copies;  ///< copies of tokens that each expert was chosen for, including dropped ones
  double dropped = 0;          ///< copies beyond an expert's capacity
  double balance = 0;  ///< the balance loss of a token, summed over tokens: 1 each if all experts are chosen alike
};

/// Chooses the experts of each token, and the gates that their outputs are multiplied by: the scores W x, as softmax or
/// sigmoid, of the top_k highest; the lower index wins a tie.
///
///   {x [batch, sequence, width]} -> {gates, experts}, both [batch, sequence, top_k], the highest score first; gates in
///           fp32 (fp64 for fp64), experts int64: -1 for a copy that is dropped
///   grad    through the gates, and in training of the balance loss and the z loss (MoeConfig): their gradients are
///           added here, so that the model's loss is that of its tokens alone. A token weighs the same in them,
///           whatever its label: ForwardContext::index says which rows of the step's batch are here, gradient_scale
///           what all gradients are multiplied by
///   throws  UsageError in training with BalanceScope::batch and a balance loss, unless set_shares() was called
class Router final : public Module {
 public:
  explicit Router(const ModelConfig& config);

  const MoeConfig& config() const noexcept { return config_; }

  /// Sequences are split over ranks: `reduction` sums what is counted in a sequence. Null: sequences are whole.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction) { reduction_ = std::move(reduction); }
  /// False: another rank has the same tokens and adds the gradients of the losses, which are then summed.
  void set_adds_losses(bool adds) noexcept { adds_losses_ = adds; }
  /// BalanceScope::batch: for each expert, its share of all copies of the step's batch. Empty: to be counted by
  /// forwards of the same tokens without gradients.
  void set_shares(std::vector<double> shares) { shares_ = std::move(shares); }

  /// Statistics of the forwards since the last call.
  RouterLoad take_load();
  /// The same for the forwards that counted shares: copies for each expert.
  std::vector<double> take_counted();

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor shares_of(const at::Tensor& chosen, int64_t length, bool is_counting) const;
  RouterLosses losses_of(const at::Tensor& shares, const ForwardContext& context, int64_t tokens) const;
  at::Tensor within_capacity(const at::Tensor& chosen, const ForwardContext& context) const;
  void count(const at::Tensor& logits, const at::Tensor& chosen, const at::Tensor& shares, const at::Tensor& experts);

  MoeConfig config_;
  Parameter& weight_;  ///< [experts, width]
  std::shared_ptr<RowReduction> reduction_;
  bool adds_losses_ = true;
  std::vector<double> shares_;
  RouterLoad load_;
  std::vector<double> counted_;
};

/// The routers of a model, in order.
std::vector<Router*> routers_of(Module& model);

}  // namespace caravan
