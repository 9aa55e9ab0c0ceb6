#include "caravan/nn/loss/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

double log_sigmoid(double x) { return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }
double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

/// Of a sequence: one order of the sum, so that a model has no margin over itself.
double log_prob_of(std::span<const double> token_losses) {
  return -std::accumulate(token_losses.begin(), token_losses.end(), 0.0);
}

/// One sequence of a pair.
struct Sequence {
  double log_ratio = 0;  ///< log p - log p_ref
  double targets = 0;
};

struct PairLoss {
  double loss;
  double by_chosen;  ///< derivative by the log probability of each target of the chosen sequence
  double by_rejected;
};

PairLoss loss_of_pair(const Sequence& chosen, const Sequence& rejected, const PreferenceSettings& settings) {
  const double beta = settings.beta;
  if (settings.kind == PreferenceKind::ipo) {
    const double apart = chosen.log_ratio / chosen.targets - rejected.log_ratio / rejected.targets - 1 / (2 * beta);
    return {apart * apart, 2 * apart / chosen.targets, -2 * apart / rejected.targets};
  }
  const double smoothing = settings.label_smoothing;
  const double margin = beta * (chosen.log_ratio - rejected.log_ratio);
  const double loss = -(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin);
  const double slope = beta * (smoothing * sigmoid(margin) - (1 - smoothing) * sigmoid(-margin));
  return {loss, slope, -slope};
}

}  // namespace

at::Tensor sequence_log_probs(const at::Tensor& token_losses, int64_t sequences) {
  at::Tensor all = at::empty({sequences}, token_losses.options());
  if (all.is_meta() || sequences == 0) return all;
  const int64_t length = token_losses.numel() / sequences;
  const auto* token_loss = token_losses.const_data_ptr<double>();
  auto* log_prob = all.mutable_data_ptr<double>();
  for (int64_t index = 0; index < sequences; ++index) {
    log_prob[index] = log_prob_of({token_loss + index * length, static_cast<size_t>(length)});
  }
  return all;
}

double preference_loss(const at::Tensor& token_losses, const at::Tensor& labels, const PreferencePass& pass,
                       const at::Tensor& factors) {
  const int64_t sequences = pass.reference.numel();
  if (sequences % 2 != 0 || labels.numel() % std::max<int64_t>(sequences, 1) != 0) {
    throw InternalError(
        {"preference", "", fmt::format("{} tokens of {} sequences are no pairs", labels.numel(), sequences), "", ""});
  }
  if (labels.is_meta()) return 0;
  const int64_t length = labels.numel() / std::max<int64_t>(sequences, 1);
  const auto* label = labels.const_data_ptr<int64_t>();
  const auto* token_loss = token_losses.const_data_ptr<double>();
  const auto* reference = pass.reference.const_data_ptr<double>();
  auto* factor = factors.mutable_data_ptr<double>();
  const auto sequence = [&](int64_t index) {
    const std::span<const double> losses(token_loss + index * length, static_cast<size_t>(length));
    const auto* first = label + index * length;
    const auto ignored = std::count(first, first + length, int64_t{kIgnoredLabel});
    return Sequence{log_prob_of(losses) - reference[index], static_cast<double>(length - ignored)};
  };
  const auto set_factors = [&](int64_t index, double by_log_prob) {
    for (int64_t t = index * length; t < (index + 1) * length; ++t) {
      factor[t] = label[t] != kIgnoredLabel ? -by_log_prob : 0;
    }
  };
  double sum = 0;
  for (int64_t index = 0; index < sequences; index += 2) {
    const Sequence chosen = sequence(index), rejected = sequence(index + 1);
    if (chosen.targets == 0 || rejected.targets == 0) {
      set_factors(index, 0);
      set_factors(index + 1, 0);
      continue;
    }
    const PairLoss of = loss_of_pair(chosen, rejected, pass.settings);
    sum += of.loss;
    set_factors(index, of.by_chosen);
    set_factors(index + 1, of.by_rejected);
    if (pass.sums == nullptr) continue;
    pass.sums->pairs += 1;
    pass.sums->chosen += pass.settings.beta * chosen.log_ratio;
    pass.sums->rejected += pass.settings.beta * rejected.log_ratio;
    pass.sums->right += chosen.log_ratio > rejected.log_ratio ? 1 : 0;
  }
  return sum;
}

}  // namespace caravan
