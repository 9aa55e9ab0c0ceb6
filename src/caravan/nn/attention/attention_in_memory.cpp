#include "caravan/nn/attention/attention_in_memory.h"

#include <limits>

#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "caravan/nn/experts/dispatch.h"

namespace caravan {
namespace {

at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

at::Tensor for_all_heads(const at::Tensor& x, const at::Tensor& q) {
  const int64_t group = q.size(2) / x.size(2);
  return group == 1 ? heads_first(x) : heads_first(x).repeat_interleave(group, 1);
}

/// [batch, heads, queries, keys].
struct ScoresInMemory {
  ScoresInMemory(const at::Tensor& q, const at::Tensor& k, const VisibleKeys& seen, const Scores& scores)
      : hidden(seen.is_all() ? at::Tensor() : seen.mask(q.size(1), k.size(1), q).logical_not()) {
    value = at::matmul(heads_first(q), for_all_heads(k, q).transpose(2, 3)).to(compute_type(q.scalar_type()));
    value = value * scores.scale_of(q.size(3));
    if (scores.soft_cap > 0) {
      tangent = at::tanh(value / scores.soft_cap);
      value = tangent * scores.soft_cap;
    }
    if (scores.bias.defined()) {
      value = value + bias_of_pairs(scores, q.size(1), k.size(1)).to(value.device(), value.scalar_type());
    }
  }
  at::Tensor without_hidden(const at::Tensor& x, double in_place) const {
    return hidden.defined() ? x.masked_fill(hidden, in_place) : x;
  }

  at::Tensor hidden;   ///< bool; undefined: none
  at::Tensor tangent;  ///< of capped scores
  at::Tensor value;
};

}  // namespace

at::Tensor attention_in_memory(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores, const AttentionDropout* dropout) {
  const ScoresInMemory s(q, k, seen, scores);
  // Finite, so that a query that sees nothing has weights; they are hidden after it.
  const double lowest = s.value.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                             : std::numeric_limits<float>::lowest();
  at::Tensor weights = s.without_hidden(at::softmax(s.without_hidden(s.value, lowest), -1), 0);
  if (dropout != nullptr) weights = dropout->dropped(weights);
  return heads_first(at::matmul(weights.to(v.scalar_type()), for_all_heads(v, q)));
}

TiledAttention block_in_memory(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores) {
  const ScoresInMemory s(q, k, seen, scores);
  const at::Tensor visible = s.without_hidden(s.value, -std::numeric_limits<double>::infinity());
  const at::Tensor log_sum_exp = at::logsumexp(visible, -1);
  const at::Tensor weights = s.without_hidden(at::exp(visible - log_sum_exp.unsqueeze(-1)), 0);
  return {heads_first(at::matmul(weights, for_all_heads(v, q))), log_sum_exp};
}

AttentionGradients block_gradients_in_memory(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen,
                                             const Scores& scores) {
  const ScoresInMemory s(q, k, seen, scores);
  const int64_t group = q.size(2) / k.size(2);
  const auto of_kv_heads = [&](const at::Tensor& x) {
    return heads_first(group == 1 ? x : x.unflatten(1, {k.size(2), group}).sum(2)).contiguous();
  };
  const at::Tensor slope = heads_first(dy);
  const at::Tensor weights = s.without_hidden(at::exp(s.value - all.log_sum_exp.unsqueeze(-1)), 0);
  const at::Tensor of_weights = at::matmul(slope, for_all_heads(v, q).transpose(2, 3));
  const at::Tensor delta = (slope * heads_first(all.out)).sum(-1, true);
  at::Tensor of_scores = weights * (of_weights - delta);
  AttentionGradients result;
  if (scores.bias.defined() && scores.bias.requires_grad()) {
    const at::Tensor index = index_of_pairs(scores, q.size(1), k.size(1));
    result.bias = at::zeros(scores.bias.sizes(), of_scores.options());
    result.bias.index_add_(1, index, of_scores.sum(0).flatten(1));
  }
  if (s.tangent.defined()) of_scores = of_scores * (1 - s.tangent.square());
  const double scale = scores.scale_of(q.size(3));
  result.q = heads_first(at::matmul(of_scores, for_all_heads(k, q)) * scale).contiguous();
  result.k = of_kv_heads(at::matmul(of_scores.transpose(2, 3), heads_first(q)) * scale);
  result.v = of_kv_heads(at::matmul(weights.transpose(2, 3), slope));
  return result;
}

}  // namespace caravan
