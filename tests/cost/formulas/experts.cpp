#include "tests/cost/formulas/experts.h"

#include <algorithm>

namespace caravan {
namespace {

constexpr double kIndexBytes = 8;      ///< int64
constexpr double kStatisticBytes = 4;  ///< fp32

double real(int64_t number) { return static_cast<double>(number); }

bool has_biases(const ModelConfig& model) { return !model.arch.is_gated; }
/// Matrices from the width to that of an MLP: 2 with a gate.
double num_ups(const ModelConfig& model) { return has_biases(model) ? 1 : 2; }

/// An all-reduce of x over n ranks sends this times x.
double sent_by_all_reduce(int64_t n) { return 2 * (real(n) - 1) / real(n); }

/// Copies of a rank's tokens for which it has experts, or a way to them.
double copies_here(const ExpertShape& shape) {
  return shape.tokens() * real(shape.model.moe.top_k) * taken_share(shape.model.moe) / real(shape.tensor_ranks);
}

/// What routers sum over the ranks that split a sequence.
double counting_bytes(const ExpertShape& shape) {
  const MoeConfig& moe = shape.model.moe;
  double counted = moe.balance == BalanceScope::sequence ? real(moe.experts) : 0;
  if (moe.capacity > 0) counted += real(shape.model.context) * real(moe.top_k);
  const double of_sequences = kStatisticBytes * real(shape.sequences) / real(shape.ranks) * counted;
  double sent = 0;
  for (const int64_t degree : shape.context_axes) sent += sent_by_all_reduce(degree) * of_sequences;
  return sent;
}

}  // namespace

FeedElements feed_elements(const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  const double h = real(model.width), f = real(model.hidden_width()), r = real(moe.shared_hidden);
  const double experts = real(std::max<int64_t>(moe.experts, 1));
  FeedElements feed{.split_matrices = (num_ups(model) + 1) * h * (experts * f + r)};
  if (moe.is_used()) feed.whole_matrices = h * (experts + (moe.shared_gate ? 1 : 0));
  if (!has_biases(model)) return feed;
  feed.split_biases = experts * f + r + (moe.is_used() ? experts * h : 0);
  feed.whole_biases = !moe.is_used() || moe.has_shared() ? h : 0;
  return feed;
}

double expert_elements(const ModelConfig& model) {
  if (!model.moe.is_used()) return 0;
  const double h = real(model.width), f = real(model.hidden_width());
  return real(model.moe.experts) * ((num_ups(model) + 1) * h * f + (has_biases(model) ? f + h : 0));
}

double taken_share(const MoeConfig& moe) { return moe.capacity > 0 ? std::min(moe.capacity, 1.0) : 1; }

double feed_activation_elements(const ModelConfig& model, double parts) {
  const MoeConfig& moe = model.moe;
  const double h = real(model.width);
  const double hidden_tensors = num_ups(model) + 1;
  const double of_expert = hidden_tensors * real(model.hidden_width());
  if (!moe.is_used()) return of_expert / parts;
  const double k = real(moe.top_k);
  return real(moe.experts) + k * h + k * taken_share(moe) * (h + of_expert) / parts +
         hidden_tensors * real(moe.shared_hidden) / parts + (moe.shared_gate ? h + 1 : 0);
}

double ExpertShape::tokens() const noexcept {
  double split = real(ranks);
  for (const int64_t degree : context_axes) split *= real(degree);
  return real(sequences) * real(model.context) / split;
}

double ExpertShape::experts() const noexcept { return real(model.moe.experts) / real(ranks * tensor_ranks); }

double ExpertShape::copies_per_expert() const noexcept {
  return tokens() * real(ranks) * real(model.moe.top_k) * taken_share(model.moe) / real(model.moe.experts);
}

double expert_weight_elements(const ExpertShape& shape) {
  return expert_elements(shape.model) / real(shape.ranks * shape.tensor_ranks);
}

double routing_bytes(const ExpertShape& shape) {
  const MoeConfig& moe = shape.model.moe;
  if (!moe.is_used()) return 0;
  const double chosen = shape.tokens() * real(moe.top_k);
  const double kept = (kIndexBytes + kStatisticBytes) * chosen + kIndexBytes * (chosen + copies_here(shape));
  const double received = shape.ranks > 1 ? 2 * kIndexBytes * copies_here(shape) : 0;
  const double shares =
      moe.balance_loss > 0 ? kStatisticBytes * real(moe.experts) * real(shape.sequences) / real(shape.ranks) : 0;
  return kept + received + shares;
}

TensorTraffic expert_bytes(const ExpertShape& shape) {
  if (!shape.model.moe.is_used()) return {};
  const double others = (real(shape.ranks) - 1) / real(shape.ranks);
  const double copies = others * copies_here(shape) * real(shape.model.width) * real(shape.element_bytes);
  const double counts = others * kIndexBytes * real(shape.model.moe.experts) / real(shape.tensor_ranks);
  const double forward = 2 * copies + counts + counting_bytes(shape);
  return {forward, 2 * copies + (shape.recompute ? forward : 0)};
}

double balance_bytes_per_step(const ModelConfig& model, int64_t world) {
  if (!model.moe.balances_batch()) return 0;
  return sent_by_all_reduce(world) * 8 * real(model.layers) * real(model.moe.experts);
}

}  // namespace caravan
