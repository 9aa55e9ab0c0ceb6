#include "caravan/nn/loss/tiled_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/path.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/loss/capped_logits.h"
#include "caravan/nn/loss/check_labels.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/nn/loss/loss_chunks.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

/// The softmax of each token over the rows so far.
struct TokenStatistics {
  TokenStatistics(int64_t tokens, const at::Tensor& like)
      : all(at::zeros({3, tokens}, like.options().dtype(at::kDouble).requires_grad(false))) {
    all[0].fill_(-std::numeric_limits<double>::infinity());
  }
  double& largest(int64_t token) const { return at(0, token); }
  double& sum(int64_t token) const { return at(1, token); }     ///< of exp(logit - largest)
  double& picked(int64_t token) const { return at(2, token); }  ///< the label's logit
  double loss(int64_t token) const { return std::log(sum(token)) + largest(token) - picked(token); }

  at::Tensor all;

 private:
  double& at(int64_t row, int64_t token) const { return data_of<double>(all)[row * all.size(1) + token]; }
};

class LossTask final : public TileTask {
 public:
  LossTask(const at::Tensor& hidden, const at::Tensor& labels, const TiledLoss& options)
      : options_(options),
        shape_(hidden.sizes().vec()),
        type_(hidden.scalar_type()),
        hidden_(matrix(hidden)),
        labels_(labels.reshape({-1}).contiguous()),
        sequences_(labels.size(0)),
        statistics_(labels_.numel(), hidden_) {
    if (!labels.is_meta()) check_labels(labels_, options.vocabulary);
  }

  void forward(const TileRows& tile, const at::Tensor& values) override {
    for_each_chunk(tile, [&](int64_t first, int64_t count) {
      const at::Tensor logits = product(hidden_.narrow(0, first, count), values);
      const CappedLogits capped(logits, options_.logits_cap, /*has_gradient=*/false);
      for_each_token(logits, first, [&](auto* row, int64_t t) { add_logits(row, t, tile); });
    });
  }

  at::Tensor result() override {
    if (options_.reduction != nullptr) reduce();
    double loss = 0;
    const PreferencePass* pass = options_.preference.get();
    if (pass != nullptr) {
      const at::Tensor losses = losses_of_tokens();
      hidden_ = at::Tensor();
      if (!pass->reference.defined()) return sequence_log_probs(losses, sequences_);
      factors_ = at::empty_like(losses);
      loss = preference_loss(losses, labels_, *pass, factors_);
    }
    for (int64_t t = 0; pass == nullptr && !labels_.is_meta() && t < labels_.numel(); ++t) {
      loss += has_target(t) ? statistics_.loss(t) : 0;
    }
    at::Tensor result = at::empty({}, labels_.options().dtype(compute_type(type_)));
    hidden_ = at::Tensor();
    planted_ = take_path("cross-entropy in tiles");
    return result.fill_(loss * planted_ * options_.scale);
  }

  void begin_backward(const at::Tensor& input, const at::Tensor& gradient, bool wants_input) override {
    hidden_ = matrix(input);
    factor_ = gradient.is_meta() ? 1 : gradient.item<double>() * options_.scale;
    if (wants_input) d_hidden_ = at::zeros(hidden_.sizes(), hidden_.options().dtype(compute_type(type_)));
  }

  void backward(const TileRows& tile, const at::Tensor& values, bool is_trained) override {
    if (!is_trained) return back_propagate(tile, values, nullptr, false);
    tile.weight.accumulate_grad([&](at::Tensor& sum, bool is_empty) { back_propagate(tile, values, &sum, is_empty); });
  }

  at::Tensor end_backward() override {
    hidden_ = at::Tensor();
    at::Tensor gradient = std::exchange(d_hidden_, at::Tensor());
    if (!gradient.defined()) return gradient;
    if (planted_ != 1) gradient.mul_(planted_);
    return gradient.to(type_).view(shape_);
  }

 private:
  static at::Tensor matrix(const at::Tensor& x) { return x.detach().reshape({-1, x.size(-1)}); }

  bool has_target(int64_t t) const { return labels_.const_data_ptr<int64_t>()[t] != kIgnoredLabel; }
  /// The column of the token's label among the rows of a tile; -1: it is not there.
  int64_t column_of(int64_t t, const TileRows& tile) const {
    const int64_t column = labels_.const_data_ptr<int64_t>()[t] - options_.first_row - tile.first;
    return column >= 0 && column < tile.count ? column : -1;
  }

  /// Chunks of tokens, as without tiles, whose logits are as many as without tiles.
  template <class Visit>
  void for_each_chunk(const TileRows& tile, Visit visit) const {
    const int64_t tokens = hidden_.size(0);
    const int64_t chunk = tokens_per_chunk(tokens, tile.count, is_on_accelerator(hidden_));
    for (int64_t first = 0; first < tokens; first += chunk) visit(first, std::min(chunk, tokens - first));
  }

  /// visit(row of the logits, token) for the tokens with a target; the rows of the others become 0.
  template <class Visit>
  void for_each_token(const at::Tensor& logits, int64_t first, Visit visit) const {
    count_kernel("cross_entropy", logits, logits);
    if (logits.is_meta()) return;
    const int64_t columns = logits.size(1);
    with_dtype("cross_entropy", logits.scalar_type(), [&](auto tag) {
      using T = decltype(tag);
      const int64_t grain = 1 + (int64_t{1} << 15) / std::max<int64_t>(columns, 1);
      parallel_for(0, logits.size(0), grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* row = data_of<T>(logits) + i * columns;
          has_target(first + i) ? visit(row, first + i) : static_cast<void>(std::fill_n(row, columns, T{}));
        }
      });
    });
  }

  template <class T>
  void add_logits(T* row, int64_t t, const TileRows& tile) const {
    const int64_t column = column_of(t, tile);
    if (column >= 0) statistics_.picked(t) = kernels::element(row, column);
    const double largest = std::max(statistics_.largest(t), kernels::row_max(row, tile.count));
    statistics_.sum(t) *= std::exp(statistics_.largest(t) - largest);
    statistics_.sum(t) += kernels::row_exponentials(row, tile.count, largest, /*keep=*/false);
    statistics_.largest(t) = largest;
  }

  /// Of all tokens, fp64.
  at::Tensor losses_of_tokens() const {
    at::Tensor losses = at::zeros({labels_.numel()}, labels_.options().dtype(at::kDouble));
    if (labels_.is_meta()) return losses;
    auto* all = losses.mutable_data_ptr<double>();
    for (int64_t t = 0; t < labels_.numel(); ++t) all[t] = has_target(t) ? statistics_.loss(t) : 0;
    return losses;
  }

  /// Other ranks have further rows of the vocabulary.
  void reduce() {
    const at::ScalarType type = compute_type(type_);
    at::Tensor largest = statistics_.all.narrow(0, 0, 1).to(type, /*non_blocking=*/false, /*copy=*/true);
    options_.reduction->max(largest);
    const at::Tensor common = largest.to(at::kDouble);
    for (int64_t t = 0; !labels_.is_meta() && t < labels_.numel(); ++t) {
      if (!has_target(t)) continue;
      const double shared = data_of<double>(common)[t];
      statistics_.sum(t) *= std::exp(statistics_.largest(t) - shared);
      statistics_.largest(t) = shared;
    }
    at::Tensor sums = statistics_.all.narrow(0, 1, 2).to(type, /*non_blocking=*/false, /*copy=*/true);
    options_.reduction->sum(sums);
    statistics_.all.narrow(0, 1, 2).copy_(sums);
    count_path("cross-entropy over a split vocabulary");
  }

  /// `sum`: of the gradient of the tile; null if it is not trained.
  void back_propagate(const TileRows& tile, const at::Tensor& values, at::Tensor* sum, bool is_empty) {
    for_each_chunk(tile, [&](int64_t first, int64_t count) {
      const at::Tensor hidden = hidden_.narrow(0, first, count);
      const at::Tensor logits = product(hidden, values);
      const CappedLogits capped(logits, options_.logits_cap, /*has_gradient=*/true);
      for_each_token(logits, first, [&](auto* row, int64_t t) { write_gradient(row, t, tile); });
      capped.back_propagate(logits);
      if (d_hidden_.defined()) {
        at::Tensor rows = d_hidden_.narrow(0, first, count);
        add_product(rows, /*is_empty=*/false, logits, values.t(), ProductKind::dx);
      }
      if (sum == nullptr) return;
      add_product(*sum, std::exchange(is_empty, false), logits.t(), hidden.t(), ProductKind::dw, count);
    });
    if (sum != nullptr && is_empty) sum->zero_();  // no tokens at all
  }

  template <class T>
  void write_gradient(T* row, int64_t t, const TileRows& tile) const {
    const double factor = factor_ * (factors_.defined() ? factors_.const_data_ptr<double>()[t] : 1);
    kernels::row_exponentials(row, tile.count, statistics_.largest(t), /*keep=*/true);
    kernels::row_softmax(row, tile.count, statistics_.largest(t), factor / statistics_.sum(t));
    const int64_t column = column_of(t, tile);
    if (column >= 0) kernels::set_element(row, column, (std::exp(-statistics_.loss(t)) - 1) * factor);
  }

  TiledLoss options_;
  std::vector<int64_t> shape_;
  at::ScalarType type_;
  at::Tensor hidden_;
  at::Tensor labels_;
  int64_t sequences_;
  TokenStatistics statistics_;
  at::Tensor factors_{};  ///< of the gradients of each token of pairs; undefined: 1
  double factor_ = 1;     ///< of the gradient
  double planted_ = 1;    ///< in a proof
  at::Tensor d_hidden_;   ///< a sum: fp32 or fp64
};

}  // namespace

at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& labels, const Tiles& tiles,
                               const TiledLoss& options, const ForwardContext& context) {
  check_device("cross_entropy", hidden);
  check_loss_shapes(hidden, tiles.example().compute(), labels);
  return tiles.run(hidden, c10::make_intrusive<LossTask>(hidden, labels, options), context);
}

}  // namespace caravan
