#include "caravan/nn/cross_entropy.h"

#include <algorithm>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Tokens per chunk: as many as fill 1 MiB of logits in fp32, which stays in cache, but at least 256 to keep the matrix
/// products efficient (chunks of 64 take 15 % longer with a vocabulary of 16 k). Chunks are of about equal size.
int64_t tokens_per_chunk(int64_t tokens, int64_t vocabulary) {
  const int64_t most = std::max<int64_t>((int64_t{1} << 18) / vocabulary, 256);
  const int64_t chunks = (tokens + most - 1) / most;
  return chunks == 0 ? 1 : (tokens + chunks - 1) / chunks;
}

void check_labels(const at::Tensor& labels, int64_t vocabulary) {
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < labels.numel(); ++t) {
    if (label[t] == kIgnoredLabel || (label[t] >= 0 && label[t] < vocabulary)) continue;
    throw DataError({"cross_entropy", "",
                     fmt::format("label {} of token {} is outside of the vocabulary of {}", label[t], t, vocabulary),
                     "", fmt::format("use the model's tokenizer; {} marks a token without a target", kIgnoredLabel)});
  }
}

/// Returns the loss of a chunk of rows. If `gradient`, overwrites the logits with their gradient.
double loss_of_rows(const at::Tensor& logits, const int64_t* labels, double scale, bool gradient) {
  const int64_t rows = logits.size(0);
  const int64_t vocabulary = logits.size(1);
  std::vector<double> loss(static_cast<size_t>(rows), 0);
  with_dtype("cross_entropy", logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, rows, 1 + (int64_t{1} << 15) / vocabulary, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* row = data_of<T>(logits) + t * vocabulary;
        if (labels[t] == kIgnoredLabel) {
          if (gradient) std::fill_n(row, vocabulary, T{});
        } else {
          loss[static_cast<size_t>(t)] = kernels::cross_entropy_row(row, vocabulary, labels[t], scale, gradient);
        }
      }
    });
  });
  return std::accumulate(loss.begin(), loss.end(), 0.0);
}

/// The weight's gradient, one product per chunk. In bf16 several chunks are summed in fp32.
class WeightGradient {
 public:
  WeightGradient(const at::Tensor& weight, bool is_one_chunk)
      : type_(is_one_chunk ? weight.scalar_type() : compute_type(weight.scalar_type())), weight_(weight) {}

  void add(const at::Tensor& logits_gradient, const at::Tensor& hidden) {
    const at::Tensor part = unrounded_product(logits_gradient.t(), hidden.t(), ProductKind::dw);
    if (!sum_.defined()) {
      sum_ = part.to(type_);
      return;
    }
    with_dtype("cross_entropy", part.scalar_type(), [&](auto type) {
      using T = decltype(type);
      at::parallel_for(0, part.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
        kernels::accumulate(data_of<T>(part) + begin, data_of<kernels::Compute<T>>(sum_) + begin, end - begin);
      });
    });
  }

  at::Tensor total() { return sum_.defined() ? sum_.to(weight_.scalar_type()) : at::zeros_like(weight_); }

 private:
  at::ScalarType type_;
  at::Tensor weight_;
  at::Tensor sum_;
};

struct FusedCrossEntropy : Function<FusedCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_in, const at::Tensor& weight,
                            const at::Tensor& labels_in, double scale, bool grad_hidden, bool grad_weight) {
    const int64_t vocabulary = weight.size(0);
    const at::Tensor hidden = hidden_in.reshape({-1, weight.size(1)});
    const auto loss_options = hidden.options().dtype(compute_type(hidden.scalar_type()));
    at::Tensor hidden_gradient = grad_hidden ? at::empty_like(hidden) : at::Tensor();
    if (hidden.is_meta()) {
      const at::Tensor weight_gradient = grad_weight ? at::empty_like(weight) : at::Tensor();
      ctx->save_for_backward(
          {grad_hidden ? hidden_gradient.view(hidden_in.sizes()) : hidden_gradient, weight_gradient});
      return at::empty({}, loss_options);
    }
    const at::Tensor labels = labels_in.reshape({-1}).contiguous();
    check_labels(labels, vocabulary);
    const int64_t tokens = hidden.size(0);
    const int64_t chunk = tokens_per_chunk(tokens, vocabulary);
    std::optional<WeightGradient> weight_gradient;
    if (grad_weight) weight_gradient.emplace(weight, chunk >= tokens);
    double loss = 0;
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t count = std::min(chunk, tokens - first);
      const at::Tensor rows = hidden.narrow(0, first, count);
      const at::Tensor logits = product(rows, weight);
      loss += loss_of_rows(logits, labels.const_data_ptr<int64_t>() + first, scale, grad_hidden || grad_weight);
      if (grad_hidden) {
        hidden_gradient.narrow(0, first, count).copy_(unrounded_product(logits, weight.t(), ProductKind::dx));
      }
      if (grad_weight) weight_gradient->add(logits, rows);
    }
    ctx->save_for_backward({grad_hidden ? hidden_gradient.view(hidden_in.sizes()) : at::Tensor(),
                            grad_weight ? weight_gradient->total() : at::Tensor()});
    at::Tensor result = at::empty({}, loss_options);
    result.fill_(loss * scale);
    return result;
  }

  /// Returns the saved tensors unscaled if the incoming gradient is 1, which holds unless the loss was scaled after
  /// this op. Once the graph is released the receiver is their only owner.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list saved = ctx->get_saved_variables();
    const at::Tensor& outer = grads[0];
    if (!outer.is_meta() && outer.item<double>() != 1) {
      for (at::Tensor& gradient : saved) {
        if (gradient.defined()) gradient = gradient * outer;
      }
    }
    return {saved[0], saved[1], {}, {}, {}, {}};
  }
};

void check_shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  const bool fits = weight.dim() == 2 && hidden.dim() >= 1 && hidden.size(-1) == weight.size(1) &&
                    labels.sizes() == hidden.sizes().slice(0, hidden.dim() - 1) && labels.scalar_type() == at::kLong &&
                    hidden.scalar_type() == weight.scalar_type();
  if (fits) return;
  throw ShapeError(
      {"cross_entropy", "",
       fmt::format("hidden [{}] {}, weight [{}] {} and labels [{}] {} do not fit", join(hidden.sizes()),
                   c10::toString(hidden.scalar_type()), join(weight.sizes()), c10::toString(weight.scalar_type()),
                   join(labels.sizes()), c10::toString(labels.scalar_type())),
       "", "give hidden [.., width], weight [vocabulary, width] of its dtype, int64 labels [..]"});
}

}  // namespace

at::Tensor fused_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                               double scale) {
  check_device("cross_entropy", hidden);
  check_shapes(hidden, weight, labels);
  const bool records = at::GradMode::is_enabled();
  return FusedCrossEntropy::apply(hidden, weight, labels, scale, records && hidden.requires_grad(),
                                  records && weight.requires_grad());
}

}  // namespace caravan
