#include "caravan/nn/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/text.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/path.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/loss/capped_logits.h"
#include "caravan/nn/loss/check_labels.h"
#include "caravan/nn/loss/loss_chunks.h"
#include "caravan/nn/loss/preference_loss.h"
#include "caravan/nn/loss/tiled_cross_entropy.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// What a forward computes besides the loss, and how.
struct CrossEntropyTask {
  double scale = 1;
  double logits_cap = 0;
  bool grad_hidden = false;
  PendingGradient::SharePtr share{};  ///< null: the weight needs no gradient
  Parameter* bias = nullptr;
  at::Tensor bias_gradient{};  ///< a sum; undefined: it needs none
  int64_t vocabulary = 0;      ///< global
  RowReduction* reduction = nullptr;
  int64_t first_row = 0;
  at::Tensor token_losses{};   ///< gets the loss of each token, fp64; undefined: nobody asks
  at::Tensor token_factors{};  ///< of the gradients of each token, fp64; undefined: 1
  std::shared_ptr<const PreferencePass> preference{};

  bool has_gradient() const { return grad_hidden || share != nullptr || bias_gradient.defined(); }
};

/// Statistics of the tokens of a chunk, a row each of [3, tokens], fp64; rounded before they are reduced over ranks.
struct Statistics {
  explicit Statistics(const at::Tensor& logits)
      : all(at::empty({3, logits.size(0)}, logits.options().dtype(at::kDouble))), tokens(logits.size(0)) {}
  double& largest(int64_t token) const { return at(0, token); }
  double& sum(int64_t token) const { return at(1, token); }     ///< of exp(logit - largest)
  double& picked(int64_t token) const { return at(2, token); }  ///< the label's logit
  double loss(int64_t token) const { return std::log(sum(token)) + largest(token) - picked(token); }

  /// Rows [first, first + count), reduced over the ranks in `type`.
  template <class Reduce>
  void reduce(int64_t first, int64_t count, at::ScalarType type, Reduce reduce) const {
    at::Tensor rows = all.narrow(0, first, count).to(type, /*non_blocking=*/false, /*copy=*/true);
    reduce(rows);
    all.narrow(0, first, count).copy_(rows);
  }

  at::Tensor all;
  int64_t tokens;

 private:
  double& at(int64_t row, int64_t token) const { return all.mutable_data_ptr<double>()[row * tokens + token]; }
};

/// A chunk of logits for the local rows of the vocabulary, from `first_row` on.
template <class T>
class Chunk {
 public:
  /// `first`: the first token of the chunk among all.
  Chunk(const at::Tensor& logits, const at::Tensor& labels, int64_t first, const CrossEntropyTask& task)
      : is_meta_(logits.is_meta()),
        data_(is_meta_ ? nullptr : data_of<T>(logits)),
        labels_(is_meta_ ? nullptr : labels.const_data_ptr<int64_t>()),
        columns_(logits.size(1)),
        first_(first),
        task_(task),
        statistics_(logits) {}

  double whole_loss() {
    for_each_row([&](int64_t t) {
      find_largest(t);
      find_sums(t);
      write_gradient(t);
    });
    return loss();
  }
  double split_loss(at::ScalarType type) {
    for_each_row([&](int64_t t) { find_largest(t); });
    statistics_.reduce(0, 1, type, [&](at::Tensor& rows) { task_.reduction->max(rows); });
    for_each_row([&](int64_t t) { find_sums(t); });
    statistics_.reduce(1, 2, type, [&](at::Tensor& rows) { task_.reduction->sum(rows); });
    for_each_row([&](int64_t t) { write_gradient(t); });
    return loss();
  }

 private:
  template <class Visit>
  void for_each_row(Visit visit) const {
    if (is_meta_) return;
    const int64_t grain = 1 + (int64_t{1} << 15) / std::max<int64_t>(columns_, 1);
    parallel_for(0, statistics_.tokens, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) visit(t);
    });
  }
  T* row(int64_t t) const { return data_ + t * columns_; }
  bool has_target(int64_t t) const { return labels_[t] != kIgnoredLabel; }
  bool is_here(int64_t t) const {
    return has_target(t) && labels_[t] >= task_.first_row && labels_[t] < task_.first_row + columns_;
  }
  void find_largest(int64_t t) const {
    statistics_.largest(t) = has_target(t) ? kernels::row_max(row(t), columns_) : 0;
  }
  void find_sums(int64_t t) const {
    statistics_.sum(t) = 0;
    statistics_.picked(t) = 0;
    if (!has_target(t)) return;
    if (is_here(t)) statistics_.picked(t) = kernels::element(row(t), labels_[t] - task_.first_row);
    statistics_.sum(t) = kernels::row_exponentials(row(t), columns_, statistics_.largest(t), task_.has_gradient());
  }
  void write_gradient(int64_t t) const {
    if (!task_.has_gradient()) return;
    if (!has_target(t)) {
      std::fill_n(row(t), columns_, T{});
      return;
    }
    const double scale = task_.scale * factor(t);
    kernels::row_softmax(row(t), columns_, statistics_.largest(t), scale / statistics_.sum(t));
    if (!is_here(t)) return;
    kernels::set_element(row(t), labels_[t] - task_.first_row, (std::exp(-statistics_.loss(t)) - 1) * scale);
  }
  double factor(int64_t t) const {
    return task_.token_factors.defined() ? task_.token_factors.const_data_ptr<double>()[first_ + t] : 1;
  }
  double loss() const {
    double sum = 0;
    if (is_meta_) return sum;
    for (int64_t t = 0; t < statistics_.tokens; ++t) {
      const double own = has_target(t) ? statistics_.loss(t) : 0;
      if (task_.token_losses.defined()) task_.token_losses.mutable_data_ptr<double>()[first_ + t] = own;
      sum += own;
    }
    return sum;
  }

  bool is_meta_;
  T* data_;
  const int64_t* labels_;
  int64_t columns_;
  int64_t first_;
  const CrossEntropyTask& task_;
  Statistics statistics_;
};

/// Returns the loss of a chunk of rows. If a gradient is wanted, overwrites the logits with it.
double loss_of_rows(const at::Tensor& logits, const at::Tensor& labels, int64_t first, const CrossEntropyTask& task) {
  double loss = 0;
  with_dtype("cross_entropy", logits.scalar_type(), [&](auto tag) {
    if (task.has_gradient()) {
      count_kernel("cross_entropy", logits, logits, logits, logits, logits);  // maximum, sums, softmax in place
    } else {
      count_kernel("cross_entropy", logits, logits);
    }
    Chunk<decltype(tag)> chunk(logits, labels, first, task);
    loss = task.reduction == nullptr ? chunk.whole_loss() : chunk.split_loss(compute_type(logits.scalar_type()));
  });
  return loss;
}

struct FusedCrossEntropy : Function<FusedCrossEntropy> {
  /// `bias`: that of the task, if it has one: an argument, for its gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_in, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels_in,
                            const CrossEntropyTask& task) {
    will_accumulate(ctx, {task.bias});
    if (task.share != nullptr) ctx->saved_data["share"] = c10::IValue::make_capsule(task.share);
    const at::Tensor hidden = hidden_in.reshape({-1, weight.size(1)});
    at::Tensor hidden_gradient = task.grad_hidden ? at::empty_like(hidden) : at::Tensor();
    at::Tensor loss = at::empty({}, hidden.options().dtype(compute_type(hidden.scalar_type())));
    const at::Tensor labels = labels_in.reshape({-1}).contiguous();
    const double sum = task.preference == nullptr
                           ? run(hidden, weight, bias.value_or(at::Tensor()), labels, task, hidden_gradient)
                           : run_pairs(hidden, weight, bias.value_or(at::Tensor()), labels, task, hidden_gradient);
    loss.fill_(sum * task.scale);
    ctx->save_for_backward(
        {task.grad_hidden ? hidden_gradient.view(hidden_in.sizes()) : at::Tensor(), task.bias_gradient});
    return loss;
  }

  /// The loss of each token, without gradients: fp64 [tokens].
  static at::Tensor losses_of_tokens(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                     const at::Tensor& labels, const CrossEntropyTask& task) {
    CrossEntropyTask scores{.logits_cap = task.logits_cap,
                            .vocabulary = task.vocabulary,
                            .reduction = task.reduction,
                            .first_row = task.first_row};
    scores.token_losses = at::empty({labels.numel()}, labels.options().dtype(at::kDouble));
    run(hidden.reshape({-1, weight.size(1)}), weight, bias, labels.reshape({-1}).contiguous(), scores, {});
    return scores.token_losses;
  }

  /// Once the graph is released, the receiver of the hidden's gradient is its only owner.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(5);
    if (!grads[0].is_meta() && grads[0].item<double>() != 1) {
      throw UsageError({"cross_entropy", "loss",
                        fmt::format("its gradient is {}, but the weight's was computed for 1", grads[0].item<double>()),
                        "", "scale the loss with ForwardContext::loss_scale"});
    }
    const auto share = ctx->saved_data.find("share");
    if (share != ctx->saved_data.end() && ctx->needs_input_grad(1)) {
      static_cast<PendingGradient::Share&>(*share->second.toCapsule()).accumulate_grad();
    }
    const variable_list saved = ctx->get_saved_variables();
    if (saved[1].defined()) accumulations_of(ctx).front()->accumulate_grad(saved[1]);
    return {saved[0], {}, {}, {}, {}};
  }

 private:
  static constexpr int64_t kToldChunks = 64;

  /// The work of chunks for which others stand.
  static void count_skipped(const at::Tensor& hidden, const at::Tensor& weight, int64_t tokens, int64_t chunk,
                            const CrossEntropyTask& task) {
    KernelLog* log = KernelLog::current();
    if (log == nullptr) return;
    const int64_t vocabulary = weight.size(0), width = weight.size(1), chunks = tokens / chunk;
    const at::ScalarType type = hidden.scalar_type();
    const bool is_unaligned = vocabulary % 8 != 0 || width % 8 != 0;  // rows of the logits, of the hidden states
    count_product("mm", type, chunk, vocabulary, width, chunks, is_unaligned);
    if (task.grad_hidden) count_product("mm", type, chunk, width, vocabulary, chunks, is_unaligned);
    if (task.share != nullptr) count_product("mm", type, vocabulary, width, chunk, chunks, is_unaligned);
    const double logits = static_cast<double>(tokens) * static_cast<double>(vocabulary);
    const double bytes = (task.has_gradient() ? 5 : 2) * logits * static_cast<double>(hidden.element_size());
    log->add({.what = "cross_entropy", .dtype = dtype_name_of(type), .bytes = bytes_of_count(bytes)});
  }

  /// The loss, unscaled.
  static double run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& labels, const CrossEntropyTask& task, const at::Tensor& hidden_gradient) {
    if (!labels.is_meta()) check_labels(labels, task.vocabulary);
    const int64_t tokens = hidden.size(0);
    // The same on ranks with other pieces.
    const int64_t chunk = tokens_per_chunk(tokens, task.vocabulary, is_on_accelerator(hidden));
    double loss = 0;
    for (int64_t first = 0; first < tokens; first += chunk) {
      // On meta tensors, which may have billions of rows, a few chunks stand for many.
      const bool is_told = labels.is_meta() && task.reduction == nullptr && first == kToldChunks * chunk;
      if (is_told) {
        const int64_t skipped = (tokens - first - 1) / chunk * chunk;
        count_skipped(hidden, weight, skipped, chunk, task);
        first += skipped;
      }
      const int64_t count = std::min(chunk, tokens - first);
      const at::Tensor rows = hidden.narrow(0, first, count);
      const at::Tensor targets = labels.narrow(0, first, count);
      const at::Tensor logits = product(rows, weight);
      if (bias.defined()) logits.add_(bias);
      const CappedLogits capped(logits, task.logits_cap, task.has_gradient());
      loss += loss_of_rows(logits, targets, first, task);
      capped.back_propagate(logits);
      if (task.grad_hidden) {
        hidden_gradient.narrow(0, first, count).copy_(product(logits, weight.t(), ProductKind::dx));
      }
      if (task.share != nullptr) task.share->add_product(logits.t(), rows.t());
      if (task.bias_gradient.defined()) task.bias_gradient.add_(logits.sum(0, false, task.bias_gradient.scalar_type()));
    }
    const double factor = take_path(chunk < tokens ? "fused cross-entropy in chunks" : "fused cross-entropy");
    if (factor != 1 && task.grad_hidden) hidden_gradient.mul_(factor);
    if (factor != 1 && task.bias_gradient.defined()) task.bias_gradient.mul_(factor);
    if (task.reduction != nullptr) count_path("cross-entropy over a split vocabulary");
    return loss * factor;
  }

  /// The loss of pairs, unscaled. The gradient of a token depends on the log probabilities of its whole pair, so that
  /// the logits of all tokens are computed before it, and again for it.
  static double run_pairs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& labels, CrossEntropyTask task, const at::Tensor& hidden_gradient) {
    const at::Tensor losses = losses_of_tokens(hidden, weight, bias, labels, task);
    task.token_factors = at::empty_like(losses);
    const double factor = take_path("loss of pairs");
    const double loss = preference_loss(losses, labels, *task.preference, task.token_factors) * factor;
    task.scale *= factor;
    if (task.has_gradient()) run(hidden, weight, bias, labels, task, hidden_gradient);
    return loss;
  }
};

}  // namespace

void check_labels(const at::Tensor& labels, int64_t vocabulary) {
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < labels.numel(); ++t) {
    if (label[t] == kIgnoredLabel || (label[t] >= 0 && label[t] < vocabulary)) continue;
    throw DataError({"cross_entropy", "",
                     fmt::format("label {} of token {} is outside of the vocabulary of {}", label[t], t, vocabulary),
                     "", fmt::format("use the model's tokenizer; {} marks a token without a target", kIgnoredLabel)});
  }
}

void check_loss_shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
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

CrossEntropy::CrossEntropy(Parameter& weight, Parameter* bias, double logits_cap)
    : weight_(share_parameter(weight)),
      bias_(bias == nullptr ? nullptr : &share_parameter(*bias)),
      logits_cap_(logits_cap),
      pending_(weight) {}

void CrossEntropy::set_row_reduction(std::shared_ptr<RowReduction> reduction, int64_t first_row) {
  reduction_ = std::move(reduction);
  first_row_ = first_row;
}

void CrossEntropy::use_tiles(const Tiles& tiles) {
  release_parameter(weight_);
  tiles_ = &tiles;
}

namespace {

/// A pass that is repeated for its backward counts no pairs again.
std::shared_ptr<const PreferencePass> counted_once(const ForwardContext& context) {
  if (context.preference == nullptr || context.phase != Phase::recompute) return context.preference;
  PreferencePass repeated = *context.preference;
  repeated.sums = nullptr;
  return std::make_shared<const PreferencePass>(std::move(repeated));
}

}  // namespace

Tensors CrossEntropy::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kType{"bsf,vf,bs->", "fv"};
  static const OpType kSplitType{"bsf,vf,bs->", "f"};
  static const OpType kBiasedType{"bsf,vf,v,bs->", "fv"};
  static const OpType kSplitBiasedType{"bsf,vf,v,bs->", "f"};
  if (inputs.size() != 2) {
    throw InternalError(
        {"cross_entropy", name(), fmt::format("takes hidden and labels, got {}", inputs.size()), "", ""});
  }
  const at::Tensor& hidden = inputs[0];
  const auto preference = counted_once(context);
  if (tiles_ != nullptr) {
    return {tiled_cross_entropy(hidden, inputs[1], *tiles_,
                                {.scale = context.loss_scale,
                                 .logits_cap = logits_cap_,
                                 .vocabulary = weight_.global_shape()[0],
                                 .reduction = reduction_,
                                 .first_row = first_row_,
                                 .preference = preference},
                                context)};
  }
  const at::Tensor& weight = weight_.compute();
  const auto bias = bias_ != nullptr ? std::optional(bias_->compute()) : std::nullopt;
  check_device("cross_entropy", hidden);
  check_loss_shapes(hidden, weight, inputs[1]);
  const bool records = at::GradMode::is_enabled();
  const CrossEntropyTask task{
      .scale = context.loss_scale,
      .logits_cap = logits_cap_,
      .grad_hidden = records && hidden.requires_grad(),
      .share = records && weight.requires_grad() ? pending_.begin() : PendingGradient::SharePtr(),
      .bias = bias_,
      .bias_gradient =
          records && bias.has_value() && bias->requires_grad()
              ? at::zeros(bias->sizes(), bias->options().dtype(compute_type(bias->scalar_type())).requires_grad(false))
              : at::Tensor(),
      .vocabulary = reduction_ == nullptr ? weight.size(0) : weight_.global_shape()[0],
      .reduction = reduction_.get(),
      .first_row = first_row_,
      .token_losses = {},
      .token_factors = {},
      .preference = preference};
  if (preference != nullptr && !preference->reference.defined()) {
    return {sequence_log_probs(
        FusedCrossEntropy::losses_of_tokens(hidden, weight, bias.value_or(at::Tensor()), inputs[1], task),
        inputs[1].size(0))};
  }
  at::Tensor loss = FusedCrossEntropy::apply(hidden, weight, bias, inputs[1], task);
  const OpType& type = bias_ == nullptr ? (reduction_ == nullptr ? kType : kSplitType)
                                        : (reduction_ == nullptr ? kBiasedType : kSplitBiasedType);
  if (bias_ == nullptr) {
    record_layout(context, type, loss, {hidden, weight_, inputs[1]}, name());
  } else {
    record_layout(context, type, loss, {hidden, weight_, *bias_, inputs[1]}, name());
  }
  if (reduction_ != nullptr && context.layouts != nullptr) {
    context.layouts->set(loss, reduction_->reduced(context.layouts->of(loss, name())));
  }
  return {loss};
}

}  // namespace caravan
