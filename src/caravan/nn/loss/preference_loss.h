#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Losses of pairs of sequences, one of which is preferred to the other. For each pair, with the log probabilities of
/// the targets of the chosen sequence c and of the rejected one r, under the model and under a reference model:
///
///   margin     (log p(c) - log p_ref(c)) - (log p(r) - log p_ref(r)), of sums over targets
///   dpo        -(1 - s) log sigmoid(beta margin) - s log sigmoid(-beta margin), with the label smoothing s
///              (Rafailov et al., arXiv 2305.18290)
///   ipo        (margin - 1 / (2 beta))^2, with the mean over the targets of a sequence in place of the sum
///              (Azar et al., arXiv 2310.12036; means as in TRL)
///   rewards    beta (log p(c) - log p_ref(c)), the same of r: of sums, for both losses
enum class PreferenceKind : uint8_t { dpo, ipo };

struct PreferenceSettings {
  PreferenceKind kind = PreferenceKind::dpo;
  double beta = 0.1;
  double label_smoothing = 0;
};

/// Sums over pairs, of which ranks and micro-batches have parts.
struct PreferenceSums {
  double pairs = 0;
  double chosen = 0;    ///< rewards
  double rejected = 0;  ///< the same
  double right = 0;     ///< pairs in which the chosen sequence has the higher reward
};

/// What a forward pass over pairs computes in place of the sum over targets (ForwardContext::preference). Sequences
/// 2k and 2k + 1 of the batch are the chosen and the rejected one of pair k.
struct PreferencePass {
  PreferenceSettings settings{};
  /// The sums of log probabilities under the reference model, fp64, one for each sequence. Undefined: this is a pass of
  /// a reference model, and returns them in place of a loss.
  at::Tensor reference{};
  std::shared_ptr<PreferenceSums> sums{};  ///< gets those of this pass; null: nobody asks
};

/// The sum of the log probabilities of the targets of each sequence, fp64 [sequences].
///   token_losses  fp64 [tokens]: -log p of the target; 0 without one
at::Tensor sequence_log_probs(const at::Tensor& token_losses, int64_t sequences);

/// The sum of the losses of all pairs; one without targets (padding) has none.
///   labels   int64 [tokens]
///   factors  fp64 [tokens], is filled: the derivative of the result by each element of token_losses
double preference_loss(const at::Tensor& token_losses, const at::Tensor& labels, const PreferencePass& pass,
                       const at::Tensor& factors);

}  // namespace caravan
