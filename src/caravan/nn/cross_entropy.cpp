#include "caravan/nn/cross_entropy.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/dispatch.h"
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

/// What a forward computes beside the loss, and how.
struct CrossEntropyTask {
  double scale = 1;
  bool grad_hidden = false;
  PendingGradient::SharePtr share{};  ///< null: the weight needs no gradient
  int64_t vocabulary = 0;             ///< global
  RowReduction* reduction = nullptr;
  int64_t first_row = 0;

  bool has_gradient() const { return grad_hidden || share != nullptr; }
};

/// Returns the loss of a chunk of rows. If `gradient`, overwrites the logits with their gradient.
double loss_of_rows(const at::Tensor& logits, const at::Tensor& of_tokens, double scale, bool gradient) {
  const int64_t* labels = of_tokens.const_data_ptr<int64_t>();
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

/// The same of logits whose vocabulary is split over ranks.
double loss_of_split_rows(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyTask& task) {
  const at::Tensor wide = logits.to(compute_type(logits.scalar_type()));
  at::Tensor largest = at::full({wide.size(0)}, -std::numeric_limits<double>::infinity(), wide.options());
  if (wide.size(1) > 0) largest = wide.amax(1);
  task.reduction->max(largest);
  const at::Tensor shifted = wide - largest.unsqueeze(1);
  const at::Tensor row = labels - task.first_row;
  const at::Tensor is_here = row.ge(0).logical_and_(row.lt(wide.size(1)));
  const at::Tensor token = is_here.nonzero().squeeze(1);
  const at::Tensor picked_row = row.index_select(0, token);
  at::Tensor sums = at::zeros({2, wide.size(0)}, wide.options());  // of exp, and the logits of the labels
  at::Tensor exponentials = shifted.exp();
  sums[0].copy_(exponentials.sum(1));
  sums[1].index_put_({token}, shifted.index({token, picked_row}));
  task.reduction->sum(sums);
  const at::Tensor has_target = labels.ne(kIgnoredLabel);
  const at::Tensor loss = (sums[0].log() - sums[1]).masked_fill_(has_target.logical_not(), 0);
  if (task.has_gradient()) {
    at::Tensor gradient = exponentials.mul_((has_target / sums[0]).unsqueeze(1));
    gradient.index_put_({token, picked_row}, gradient.index({token, picked_row}) - 1);
    logits.copy_(gradient.mul_(task.scale));
  }
  return loss.sum(at::kDouble).item<double>();
}

struct FusedCrossEntropy : Function<FusedCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_in, const at::Tensor& weight,
                            const at::Tensor& labels_in, const CrossEntropyTask& task) {
    ctx->set_materialize_grads(false);
    if (task.share != nullptr) ctx->saved_data["share"] = c10::IValue::make_capsule(task.share);
    const at::Tensor hidden = hidden_in.reshape({-1, weight.size(1)});
    at::Tensor hidden_gradient = task.grad_hidden ? at::empty_like(hidden) : at::Tensor();
    at::Tensor loss = at::empty({}, hidden.options().dtype(compute_type(hidden.scalar_type())));
    if (hidden.is_meta()) {
      if (task.share != nullptr)
        task.share->add_product(hidden.new_empty({weight.size(0), 1}), hidden.new_empty({weight.size(1), 1}));
    } else {
      loss.fill_(run(hidden, weight, labels_in.reshape({-1}).contiguous(), task, hidden_gradient) * task.scale);
    }
    ctx->save_for_backward({task.grad_hidden ? hidden_gradient.view(hidden_in.sizes()) : at::Tensor()});
    return loss;
  }

  /// Once the graph is released, the receiver of the hidden's gradient is its only owner.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(4);
    if (!grads[0].is_meta() && grads[0].item<double>() != 1) {
      throw UsageError({"cross_entropy", "loss",
                        fmt::format("its gradient is {}, but the weight's was computed for 1", grads[0].item<double>()),
                        "", "scale the loss with ForwardContext::loss_scale"});
    }
    const auto share = ctx->saved_data.find("share");
    if (share != ctx->saved_data.end() && ctx->needs_input_grad(1)) {
      static_cast<PendingGradient::Share&>(*share->second.toCapsule()).deposit();
    }
    return {ctx->get_saved_variables()[0], {}, {}, {}};
  }

 private:
  /// The loss, unscaled.
  static double run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                    const CrossEntropyTask& task, const at::Tensor& hidden_gradient) {
    check_labels(labels, task.vocabulary);
    const int64_t tokens = hidden.size(0);
    const int64_t chunk = tokens_per_chunk(tokens, task.vocabulary);  // the same on ranks with other pieces
    double loss = 0;
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t count = std::min(chunk, tokens - first);
      const at::Tensor rows = hidden.narrow(0, first, count);
      const at::Tensor targets = labels.narrow(0, first, count);
      const at::Tensor logits = product(rows, weight);
      loss += task.reduction == nullptr ? loss_of_rows(logits, targets, task.scale, task.has_gradient())
                                        : loss_of_split_rows(logits, targets, task);
      if (task.grad_hidden) {
        hidden_gradient.narrow(0, first, count).copy_(unrounded_product(logits, weight.t(), ProductKind::dx));
      }
      if (task.share != nullptr) task.share->add_product(logits.t(), rows.t());
    }
    return loss;
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

CrossEntropy::CrossEntropy(Parameter& weight) : weight_(share_parameter(weight)), pending_(weight) {}

void CrossEntropy::set_row_reduction(std::shared_ptr<RowReduction> reduction, int64_t first_row) {
  reduction_ = std::move(reduction);
  first_row_ = first_row;
}

Tensors CrossEntropy::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kType{"bsf,vf,bs->", "fv"};
  if (inputs.size() != 2) {
    throw InternalError(
        {"cross_entropy", name(), fmt::format("takes hidden and labels, got {}", inputs.size()), "", ""});
  }
  const at::Tensor& hidden = inputs[0];
  const at::Tensor& weight = weight_.compute();
  check_device("cross_entropy", hidden);
  check_shapes(hidden, weight, inputs[1]);
  const bool records = at::GradMode::is_enabled();
  const CrossEntropyTask task{
      .scale = context.loss_scale,
      .grad_hidden = records && hidden.requires_grad(),
      .share = records && weight.requires_grad() ? pending_.begin() : PendingGradient::SharePtr(),
      .vocabulary = reduction_ == nullptr ? weight.size(0) : weight_.global_shape()[0],
      .reduction = reduction_.get(),
      .first_row = first_row_};
  at::Tensor loss = FusedCrossEntropy::apply(hidden, weight, inputs[1], task);
  if (reduction_ == nullptr) record_layout(context, kType, loss, {hidden, weight_, inputs[1]}, name());
  return {loss};
}

}  // namespace caravan
