#include "caravan/train/evaluate.h"

#include <cmath>
#include <numbers>
#include <span>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "caravan/comm/tensor.h"

namespace caravan {

Evaluation evaluate(Module& model, const ValidationWindows& windows, int64_t context, int64_t rows,
                    const MeshAxis& axis) {
  const at::NoGradGuard no_grad;
  ForwardContext forward;
  forward.training = false;
  const at::Tensor ids = at::empty({rows, context}, at::kLong);
  const at::Tensor labels = at::empty({rows, context}, at::kLong);
  const auto span_of = [](const at::Tensor& tensor) {
    return std::span(tensor.mutable_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel()));
  };
  double nats = 0;
  for (int64_t first = axis.coord() * rows; first < windows.size(); first += axis.size() * rows) {
    windows.fill(first, span_of(ids), span_of(labels));
    // The last batch has fewer windows than rows: the others have no target, and are not computed either.
    const int64_t filled = std::min(rows, windows.size() - first);
    nats += model.run({ids.narrow(0, 0, filled), labels.narrow(0, 0, filled)}, forward).front().item<double>();
    axis.comm().progress();
  }
  const at::Tensor sum = at::full({1}, nats, at::kDouble);
  all_reduce_async(axis.comm(), sum, sum, ReduceOp::sum, "validation loss").wait();
  const double total = sum.item<double>();
  return {.loss = total / static_cast<double>(windows.num_targets()),
          .bits_per_byte = total / std::numbers::ln2 / static_cast<double>(windows.text_bytes())};
}

}  // namespace caravan
