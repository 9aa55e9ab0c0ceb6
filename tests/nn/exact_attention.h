#pragma once

#include <algorithm>
#include <cmath>
#include <ostream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/nn/attention/tiled_attention.h"
#include "tests/nn/tiny.h"

namespace caravan::testing {

struct AttentionSizes {
  int64_t batch, queries, keys, heads, kv_heads, width;
};

inline std::ostream& operator<<(std::ostream& out, const AttentionSizes& s) {
  return out << s.batch << " x " << s.queries << " of " << s.keys << ", " << s.heads << " heads of " << s.kv_heads
             << ", width " << s.width;
}

struct AttentionOperands {
  at::Tensor q, k, v, dy;
};

inline AttentionOperands operands(const AttentionSizes& s, at::ScalarType type = at::kFloat) {
  return {normal({s.batch, s.queries, s.heads, s.width}, 1).to(type),
          normal({s.batch, s.keys, s.kv_heads, s.width}, 2).to(type),
          normal({s.batch, s.keys, s.kv_heads, s.width}, 3).to(type),
          normal({s.batch, s.queries, s.heads, s.width}, 4).to(type)};
}

struct AttentionResults {
  at::Tensor out, log_sum_exp, dq, dk, dv;
  at::Tensor dbias{};  ///< or undefined
  Tensors all() const {
    Tensors tensors{out, log_sum_exp, dq, dk, dv};
    if (dbias.defined()) tensors.push_back(dbias);
    return tensors;
  }
};

inline AttentionResults tiled(const AttentionOperands& x, const VisibleKeys& seen,
                              TileOperands operands = TileOperands::fp32, const AttentionDropout* dropout = nullptr,
                              const Scores& scores = {}) {
  const at::ScalarType type = x.q.scalar_type();
  const TiledAttention y = tiled_attention(x.q, x.k, x.v, seen, scores, dropout, operands, type);
  const AttentionGradients d = tiled_attention_backward(x.dy, x.q, x.k, x.v, y, seen, scores, dropout, operands, type);
  return {y.out, y.log_sum_exp, d.q, d.k, d.v, d.bias};
}

/// The plain formula in fp64 and autograd. `visible`: bool, broadcasts to [batch, 1, queries, keys]. `factors`: of the
/// weights, by dropout.
inline AttentionResults exact(const AttentionOperands& x, const at::Tensor& visible,
                              const at::Tensor& factors = at::ones({}), const Scores& scores = {}) {
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().clone().requires_grad_(true); };
  const at::Tensor q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
  const int64_t group = q.size(2) / k.size(2);
  const at::Tensor keys = k.repeat_interleave(group, 2).transpose(1, 2);
  const at::Tensor values = v.repeat_interleave(group, 2).transpose(1, 2);
  at::Tensor s = at::matmul(q.transpose(1, 2), keys.transpose(2, 3)) *
                 (scores.scale != 0 ? scores.scale : 1 / std::sqrt(static_cast<double>(q.size(3))));
  if (scores.soft_cap != 0) s = scores.soft_cap * at::tanh(s / scores.soft_cap);
  at::Tensor bias;
  if (scores.bias.defined()) {
    const auto or_counted = [](const at::Tensor& given, int64_t count) {
      return given.defined() ? given : at::arange(count);
    };
    const at::Tensor distance = or_counted(scores.key_positions, k.size(1)) -
                                or_counted(scores.query_positions, q.size(1)).unsqueeze(1) + scores.zero;
    bias = leaf(scores.bias);
    s = s + bias.index({at::indexing::Slice(), distance.clamp(0, bias.size(1) - 1)});
  }
  s = s.masked_fill(visible.logical_not(), -INFINITY);
  // A query that sees nothing has weights of 0, not of NaN.
  const at::Tensor weights = at::softmax(s, -1).masked_fill(visible.logical_not(), 0);
  const at::Tensor out = at::matmul(weights * factors, values).transpose(1, 2);
  out.backward(x.dy.to(at::kDouble));
  return {out.detach(), at::logsumexp(s, -1).detach(),
          q.grad(),     k.grad(),
          v.grad(),     bias.defined() && scores.bias.requires_grad() ? bias.grad() : at::Tensor()};
}

inline const char* const kNames[] = {"out", "log_sum_exp", "dq", "dk", "dv", "dbias"};

/// fp32 sums of up to 300 products of numbers around 1.
inline constexpr double kFp32 = 2e-6;

inline void expect_close(const AttentionResults& got, const AttentionResults& want, double tolerance) {
  ASSERT_EQ(got.all().size(), want.all().size());
  for (size_t i = 0; i < want.all().size(); ++i) {
    const at::Tensor a = got.all()[i].to(at::kDouble), b = want.all()[i];
    const at::Tensor is_infinite = b.isfinite().logical_not();
    EXPECT_TRUE(a.isfinite().logical_not().equal(is_infinite)) << kNames[i];
    const at::Tensor difference = (a - b).masked_fill(is_infinite, 0);
    const double scale = std::max(1.0, b.masked_fill(is_infinite, 0).norm().item<double>());
    EXPECT_LE(difference.norm().item<double>(), tolerance * scale) << kNames[i];
  }
}

}  // namespace caravan::testing
