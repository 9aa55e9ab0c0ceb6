#include "caravan/nn/experts/route.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/experts/dispatch.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Calls visit(token) for each token, in parallel; a token costs about `work` operations.
template <class Visit>
void for_each_token(int64_t tokens, int64_t work, Visit visit) {
  const int64_t grain = 1 + (int64_t{1} << 14) / std::max<int64_t>(work, 1);
  parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) visit(token);
  });
}

/// f(T{}) with the type of statistics, float or double.
template <class F>
void with_statistics(at::ScalarType type, F f) {
  if (type == at::kDouble) return f(double{});
  f(float{});
}

at::Tensor in_statistics(const at::Tensor& x) { return x.detach().to(compute_type(x.scalar_type())).contiguous(); }

/// The scores of one token, in fp64.
class GateScores {
 public:
  GateScores(const auto* logits, int64_t count, Gates gates) : gates_(gates), scores_(static_cast<size_t>(count)) {
    const double largest = *std::max_element(logits, logits + count);
    double sum = 0;
    for (int64_t e = 0; e < count; ++e) sum += std::exp(static_cast<double>(logits[e]) - largest);
    log_sum_ = largest + std::log(sum);
    for (int64_t e = 0; e < count; ++e) {
      const auto logit = static_cast<double>(logits[e]);
      (*this)[e] = gates == Gates::softmax ? std::exp(logit - log_sum_) : 1 / (1 + std::exp(-logit));
      sum_ += (*this)[e];
    }
  }
  double& operator[](int64_t e) { return scores_[static_cast<size_t>(e)]; }
  double sum() const { return sum_; }  ///< 1 for softmax
  double log_sum() const { return log_sum_; }
  int64_t size() const { return static_cast<int64_t>(scores_.size()); }

  /// Turns the gradient of the scores into that of the logits.
  void to_logits(std::vector<double>& gradient) {
    double mean = 0;
    for (int64_t e = 0; e < size(); ++e) mean += gradient[static_cast<size_t>(e)] * (*this)[e];
    for (int64_t e = 0; e < size(); ++e) {
      double& g = gradient[static_cast<size_t>(e)];
      g = gates_ == Gates::softmax ? (*this)[e] * (g - mean) : g * (*this)[e] * (1 - (*this)[e]);
    }
  }

 private:
  Gates gates_;
  std::vector<double> scores_;
  double sum_ = 0;
  double log_sum_ = 0;
};

struct GatesFunction : Function<GatesFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& experts,
                            const MoeConfig& config, const RouterLosses& losses) {
    ctx->save_for_backward({logits, experts, losses.balance});
    ctx->saved_data["sigmoid"] = config.gates == Gates::sigmoid;
    ctx->saved_data["normalize"] = config.normalize;
    ctx->saved_data["z"] = losses.z;
    at::Tensor gates = at::empty(experts.sizes(), logits.options().dtype(compute_type(logits.scalar_type())));
    const at::Tensor values = in_statistics(logits);
    count_kernel("route", values, experts, gates);
    if (values.is_meta()) return gates;
    const int64_t num_experts = logits.size(-1), k = experts.size(-1);
    const int64_t* chosen = experts.const_data_ptr<int64_t>();
    with_statistics(values.scalar_type(), [&](auto tag) {
      using T = decltype(tag);
      for_each_token(experts.numel() / k, 8 * num_experts, [&](int64_t token) {
        GateScores scores(data_of<T>(values) + token * num_experts, num_experts, config.gates);
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += scores[chosen[token * k + j]];
        for (int64_t j = 0; j < k; ++j) {
          const double gate = scores[chosen[token * k + j]];
          data_of<T>(gates)[token * k + j] = static_cast<T>(config.normalize ? gate / sum : gate);
        }
      });
    });
    return gates;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor values = in_statistics(logits);
    at::Tensor gradient = at::empty_like(values);
    const at::Tensor of_gates = grads[0].contiguous();
    count_kernel("route", values, of_gates, gradient);
    if (values.is_meta()) return {gradient.to(logits.scalar_type()), {}, {}, {}};
    with_statistics(values.scalar_type(), [&](auto tag) {
      using T = decltype(tag);
      write_gradient<T>(ctx, values, saved[1], saved[2], of_gates, gradient);
    });
    return {gradient.to(logits.scalar_type()), {}, {}, {}};
  }

 private:
  template <class T>
  static void write_gradient(AutogradContext* ctx, const at::Tensor& values, const at::Tensor& experts,
                             const at::Tensor& balance, const at::Tensor& of_gates, at::Tensor& gradient) {
    const Gates kind = ctx->saved_data["sigmoid"].toBool() ? Gates::sigmoid : Gates::softmax;
    const bool normalizes = ctx->saved_data["normalize"].toBool();
    const double z = ctx->saved_data["z"].toDouble();
    const int64_t num_experts = values.size(-1), k = experts.size(-1), length = values.size(1);
    const int64_t* chosen = experts.const_data_ptr<int64_t>();
    const T* of_balance = balance.defined() ? data_of<T>(balance) : nullptr;
    for_each_token(experts.numel() / k, 16 * num_experts, [&](int64_t token) {
      const T* row = data_of<T>(values) + token * num_experts;
      GateScores scores(row, num_experts, kind);
      std::vector<double> of_scores(static_cast<size_t>(num_experts), 0);
      add_gates(scores, chosen + token * k, data_of<T>(of_gates) + token * k, k, normalizes, of_scores);
      if (of_balance != nullptr) add_balance(scores, of_balance + token / length * num_experts, of_scores);
      scores.to_logits(of_scores);
      for (int64_t e = 0; e < num_experts; ++e) {
        double& g = of_scores[static_cast<size_t>(e)];
        if (z != 0) g += 2 * z * scores.log_sum() * std::exp(static_cast<double>(row[e]) - scores.log_sum());
        data_of<T>(gradient)[token * num_experts + e] = static_cast<T>(g);
      }
    });
  }

  template <class T>
  static void add_gates(GateScores& scores, const int64_t* chosen, const T* of_gates, int64_t k, bool normalizes,
                        std::vector<double>& of_scores) {
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += scores[chosen[j]];
      mean += static_cast<double>(of_gates[j]) * scores[chosen[j]];
    }
    for (int64_t j = 0; j < k; ++j) {
      const auto g = static_cast<double>(of_gates[j]);
      of_scores[static_cast<size_t>(chosen[j])] += normalizes ? (g - mean / sum) / sum : g;
    }
  }

  /// The gradient of probabilities: the scores divided by their sum.
  template <class T>
  static void add_balance(GateScores& scores, const T* of_balance, std::vector<double>& of_scores) {
    double mean = 0;
    for (int64_t e = 0; e < scores.size(); ++e) mean += static_cast<double>(of_balance[e]) * scores[e] / scores.sum();
    for (int64_t e = 0; e < scores.size(); ++e) {
      of_scores[static_cast<size_t>(e)] += (static_cast<double>(of_balance[e]) - mean) / scores.sum();
    }
  }
};

}  // namespace

at::Tensor top_experts(const at::Tensor& logits, int64_t top_k) {
  std::vector<int64_t> shape = logits.sizes().vec();
  const int64_t num_experts = shape.back();
  shape.back() = top_k;
  at::Tensor experts = at::empty(shape, logits.options().dtype(at::kLong).requires_grad(false));
  const at::Tensor values = in_statistics(logits);
  count_kernel("route", values, experts);
  if (values.is_meta()) return experts;
  with_statistics(values.scalar_type(), [&](auto tag) {
    using T = decltype(tag);
    for_each_token(experts.numel() / top_k, top_k * num_experts, [&](int64_t token) {
      const T* row = data_of<T>(values) + token * num_experts;
      int64_t* best = data_of<int64_t>(experts) + token * top_k;
      for (int64_t j = 0; j < top_k; ++j) {
        best[j] = -1;
        for (int64_t e = 0; e < num_experts; ++e) {
          if (std::find(best, best + j, e) != best + j) continue;
          if (best[j] < 0 || row[e] > row[best[j]]) best[j] = e;
        }
      }
    });
  });
  return experts;
}

at::Tensor copies_of(const at::Tensor& experts, int64_t num_experts, at::ScalarType type) {
  at::Tensor copies = at::zeros({experts.size(0), num_experts}, experts.options().dtype(type));
  count_kernel("route", experts, copies);
  if (experts.is_meta()) return copies;
  const int64_t in_row = experts.size(1) * experts.size(2);
  const int64_t* chosen = experts.const_data_ptr<int64_t>();
  with_statistics(type, [&](auto tag) {
    auto* count = data_of<decltype(tag)>(copies);
    for (int64_t i = 0; i < experts.numel(); ++i) count[i / in_row * num_experts + chosen[i]] += 1;
  });
  return copies;
}

at::Tensor summed_probabilities(const at::Tensor& logits, Gates gates) {
  const at::Tensor values = in_statistics(logits);
  const int64_t num_experts = values.size(2);
  at::Tensor sums = at::zeros({values.size(0), num_experts}, values.options());
  count_kernel("route", values, sums);
  if (values.is_meta()) return sums;
  with_statistics(values.scalar_type(), [&](auto tag) {
    using T = decltype(tag);
    for_each_token(values.size(0), 8 * values.size(1) * num_experts, [&](int64_t sequence) {
      for (int64_t t = 0; t < values.size(1); ++t) {
        GateScores scores(data_of<T>(values) + (sequence * values.size(1) + t) * num_experts, num_experts, gates);
        T* row = data_of<T>(sums) + sequence * num_experts;
        for (int64_t e = 0; e < num_experts; ++e) row[e] += static_cast<T>(scores[e] / scores.sum());
      }
    });
  });
  return sums;
}

at::Tensor gates_of(const at::Tensor& logits, const at::Tensor& experts, const MoeConfig& config,
                    const RouterLosses& losses) {
  return GatesFunction::apply(logits, experts, config, losses);
}

}  // namespace caravan
