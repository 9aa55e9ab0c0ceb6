#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/models/model.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan::testing {

/// A small model and a global batch whose rows have different numbers of targets.
struct Problem {
  static constexpr int64_t kRows = 36;  ///< up to 4 ranks with 3 micro-batches each
  static constexpr int64_t kLength = 8;

  explicit Problem(Architecture kind)
      : config{.arch = kind,
               .layers = 2,
               .width = 16,
               .heads = 4,
               .kv_heads = kind == Architecture::llama() ? 2 : 0,
               .context = kLength,
               .vocabulary = 24,
               .tie_embeddings = kind == Architecture::gpt2()} {}

  struct Batch {
    at::Tensor ids, labels;
    ForwardContext context;
  };

  /// The whole batch of a step.
  Batch batch(int64_t step = 0) const {
    const at::Tensor ids = (at::arange(kRows * (kLength + 1)) * 7 + step * 5).remainder(24).view({kRows, kLength + 1});
    Batch batch{ids.narrow(1, 0, kLength).contiguous(), ids.narrow(1, 1, kLength).contiguous(), {}};
    for (int64_t row = 0; row < kRows; ++row) batch.labels[row].narrow(0, 0, row % 5) = kIgnoredLabel;
    batch.context.step = step;
    batch.context.loss_scale = 1.0 / batch.labels.ge(0).sum().item<double>();
    return batch;
  }

  /// Rank `rank` of `ranks`, micro-batch `micro` of `micros`: consecutive rows.
  Batch part(const Batch& whole, int rank, int ranks, int micro, int micros) const {
    const int64_t rows = kRows / ranks / micros;
    const int64_t begin = (static_cast<int64_t>(rank) * micros + micro) * rows;
    return {whole.ids.narrow(0, begin, rows), whole.labels.narrow(0, begin, rows), whole.context};
  }

  ModelConfig config;
};

using Named = std::map<std::string, at::Tensor>;

inline Named gradients_of(const Module& model) {
  Named gradients;
  for (const Parameter* parameter : model.parameters()) {
    gradients[parameter->name()] = parameter->sharded().grad().detach().clone();
  }
  return gradients;
}

/// The largest of |a - b| / (|b| + 1e-6 max|g| sqrt(n)) over the tensors, and the name of that tensor. |..| is the
/// 2-norm, n the number of elements, max|g| the maximum over all gradients, which keeps a gradient of pure rounding
/// error from being divided by itself.
inline std::pair<double, std::string> distance(const Named& a, const Named& b) {
  double largest = 0;
  for (const auto& [name, tensor] : b) largest = std::max(largest, tensor.abs().max().item<double>());
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [name, tensor] : b) {
    const double n = static_cast<double>(tensor.numel());
    const double apart = (a.at(name).to(at::kDouble) - tensor.to(at::kDouble)).norm().item<double>() /
                         (tensor.to(at::kDouble).norm().item<double>() + 1e-6 * largest * std::sqrt(n));
    if (!(apart <= worst.first)) worst = {apart, name};
  }
  return worst;
}

}  // namespace caravan::testing
