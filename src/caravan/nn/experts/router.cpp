#include "caravan/nn/experts/router.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/experts/route.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

/// For [batch, length, top_k]: keeps the first `most` copies of each expert in a sequence, first choices before second
/// ones.
at::Tensor kept_copies(const at::Tensor& experts, int64_t num_experts, int64_t most) {
  at::Tensor kept = experts.clone();
  count_kernel("route", experts, kept);
  if (kept.is_meta()) return kept;
  const int64_t length = experts.size(1), k = experts.size(2);
  int64_t* chosen = data_of<int64_t>(kept);
  for (int64_t row = 0; row < experts.size(0); ++row) {
    std::vector<int64_t> taken(static_cast<size_t>(num_experts), 0);
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t t = 0; t < length; ++t) {
        int64_t& expert = chosen[(row * length + t) * k + j];
        if (++taken[static_cast<size_t>(expert)] > most) expert = -1;
      }
    }
  }
  return kept;
}

}  // namespace

Router::Router(const ModelConfig& config)
    : config_(config.moe),
      weight_(register_parameter(
          "weight",
          {.shape = {config.moe.experts, config.width}, .init = {Init::Kind::normal, kInitStd}, .decays = true})) {
  take_load();
  take_counted();
}

RouterLoad Router::take_load() {
  return std::exchange(load_, {.copies = std::vector<double>(static_cast<size_t>(config_.experts), 0)});
}

std::vector<double> Router::take_counted() {
  return std::exchange(counted_, std::vector<double>(static_cast<size_t>(config_.experts), 0));
}

Tensors Router::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kScores{"bsf,ef->bse", "", {{0, 1}}};
  static const OpType kGates{"bse->bse", "e"};  // from scores to choices
  const at::Tensor& x = inputs.at(0);
  const at::Tensor logits = linear(x, weight_);
  record_layout(context, kScores, logits, {x, weight_}, name());
  const at::Tensor chosen = top_experts(logits, config_.top_k);
  at::Tensor experts = chosen;
  RouterLosses losses;
  if (context.is_training()) {
    const int64_t length = checked_index(context, Dim::sequence, x.size(1), name()).global(x.size(1));
    const int64_t rows = checked_index(context, Dim::batch, x.size(0), name()).global(x.size(0));
    const at::Tensor shares = shares_of(chosen, length, !at::GradMode::is_enabled());
    if (config_.capacity > 0) experts = within_capacity(chosen, context);
    if (shares.defined()) losses = losses_of(shares, context, rows * length);
    if (context.phase == Phase::forward) count(logits, chosen, shares, experts);
  }
  at::Tensor gates = gates_of(logits, chosen, config_, losses);
  record_layout(context, kGates, gates, {logits}, name());
  return {gates, experts};
}

/// The fraction of all copies for which each expert is chosen, [batch, experts]; undefined while they are counted.
at::Tensor Router::shares_of(const at::Tensor& chosen, int64_t length, bool is_counting) const {
  const at::ScalarType type = weight_.compute().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor copies = copies_of(chosen, config_.experts, type);
  if (config_.balance_loss == 0) length = chosen.size(1);  // only for the log: of the local tokens
  if (!config_.balances_batch()) {
    if (reduction_ != nullptr && config_.balance_loss > 0) reduction_->sum(copies);
    return copies.div_(static_cast<double>(length * config_.top_k));
  }
  if (!shares_.empty()) return at::tensor(shares_, copies.options()).expand_as(copies).contiguous();
  if (is_counting) return {};
  if (copies.is_meta()) return copies;
  throw UsageError({"router", name(), "the shares of the experts in the step's batch are not known", "",
                    "train with TrainStep, which counts them, or use moe.balance = \"sequence\""});
}

RouterLosses Router::losses_of(const at::Tensor& shares, const ForwardContext& context, int64_t tokens) const {
  if (!adds_losses_) return {};
  const double of_token = context.gradient_scale / static_cast<double>(tokens);
  RouterLosses losses{.z = config_.z_loss * of_token};
  if (config_.balance_loss > 0) {
    losses.balance = shares.mul(config_.balance_loss * static_cast<double>(config_.experts) * of_token);
  }
  return losses;
}

/// Which copies exceed an expert's capacity depends on the whole sequence: if ranks split it, each gathers the choices
/// of the others.
at::Tensor Router::within_capacity(const at::Tensor& chosen, const ForwardContext& context) const {
  const int64_t here = chosen.size(1);
  const DimIndex& sequence = checked_index(context, Dim::sequence, here, name());
  const int64_t length = sequence.global(here);
  const double even = static_cast<double>(config_.top_k * length) / static_cast<double>(config_.experts);
  constexpr double kRounding = 1e-9;  // 1.1 x 50 is 55
  const double most_copies = std::min(std::ceil(config_.capacity * even - kRounding), static_cast<double>(length));
  const auto most = static_cast<int64_t>(most_copies);
  if (reduction_ == nullptr || here == length) {
    return kept_copies(chosen, config_.experts, most);
  }
  at::Tensor all = at::zeros({chosen.size(0), length, chosen.size(2)}, chosen.options().dtype(at::kFloat));
  const at::Tensor slots = sequence.indices(here).to(chosen.device());
  all.index_copy_(1, slots, chosen.to(at::kFloat));
  reduction_->sum(all);
  return kept_copies(all.to(at::kLong), config_.experts, most).index_select(1, slots);
}

void Router::count(const at::Tensor& logits, const at::Tensor& chosen, const at::Tensor& shares,
                   const at::Tensor& experts) {
  const at::NoGradGuard no_grad;
  const at::Tensor copies = copies_of(chosen, config_.experts, at::kDouble).sum(0);
  std::vector<double>& sums = shares.defined() ? load_.copies : counted_;
  for (size_t e = 0; e < sums.size() && !copies.is_meta(); ++e) sums[e] += copies.const_data_ptr<double>()[e];
  if (!shares.defined()) return;
  const at::Tensor dropped = experts.lt(0).sum();
  const at::Tensor balance = summed_probabilities(logits, config_.gates).mul_(shares).sum(at::kDouble);
  if (balance.is_meta()) return;
  load_.dropped += dropped.item<double>();
  load_.balance += static_cast<double>(config_.experts) * balance.item<double>();
}

std::vector<Router*> routers_of(Module& model) {
  std::vector<Router*> routers;
  for (Module* module : model.modules()) {
    if (auto* router = dynamic_cast<Router*>(module)) routers.push_back(router);
  }
  return routers;
}

}  // namespace caravan
