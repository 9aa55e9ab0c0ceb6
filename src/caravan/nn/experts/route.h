#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/nn/config.h"

namespace caravan {

/// The top_k columns of each row of `logits` [.., experts], the highest first; ties go to the lower index: int64 [..,
/// top_k].
at::Tensor top_experts(const at::Tensor& logits, int64_t top_k);

/// How often each expert occurs in a sequence of experts [batch, sequence, top_k]: [batch, num_experts], of `type`.
at::Tensor copies_of(const at::Tensor& experts, int64_t num_experts, at::ScalarType type);

/// The probabilities of the experts, summed over the tokens of each sequence: [batch, experts], of the type of
/// statistics. Sigmoid scores are divided by their sum over all experts.
at::Tensor summed_probabilities(const at::Tensor& logits, Gates gates);

/// What backward adds to the gradient of scores: d loss / d probability of the experts in each sequence [batch,
/// experts], undefined for none; and z, the factor of the squares of log-sum-exps.
struct RouterLosses {
  at::Tensor balance{};
  double z = 0;
};

/// The gates of the chosen experts [batch, sequence, top_k], in fp32 (fp64 for fp64), differentiable once in logits
/// [batch, sequence, experts]. If gates are normalised, those of a token add up to 1.
at::Tensor gates_of(const at::Tensor& logits, const at::Tensor& experts, const MoeConfig& config,
                    const RouterLosses& losses);

}  // namespace caravan
