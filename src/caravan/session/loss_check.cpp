#include "caravan/session/loss_check.h"

#include <ATen/core/Reduction.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using torch::autograd::Node;

/// Whether `node` is the backward of a loss function of torch with reduction "mean".
template <class... Losses>
bool is_mean_of(const Node* node) {
  const auto is = [node](const auto* loss) {
    const auto* found = dynamic_cast<decltype(loss)>(node);
    return found != nullptr && found->reduction == at::Reduction::Mean;
  };
  return (is(static_cast<const Losses*>(nullptr)) || ...);
}

std::string mean_of(const Node* node) {
  using namespace torch::autograd::generated;
  if (node == nullptr) return "";
  const bool is_mean =
      dynamic_cast<const MeanBackward0*>(node) != nullptr || dynamic_cast<const MeanBackward1*>(node) != nullptr ||
      is_mean_of<NllLossBackward0, NllLoss2DBackward0, MseLossBackward0, SmoothL1LossBackward0, HuberLossBackward0,
                 BinaryCrossEntropyBackward0, BinaryCrossEntropyWithLogitsBackward0, SoftMarginLossBackward0,
                 MultiMarginLossBackward0, MultilabelMarginLossBackward0>(node);
  return is_mean ? node->name() : "";
}

thread_local BackwardWatch* watch = nullptr;

}  // namespace

std::string mean_that_makes(const at::Tensor& loss) { return mean_of(loss.grad_fn().get()); }

BackwardWatch::BackwardWatch() : outer_(std::exchange(watch, this)) {
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&BackwardWatch::see).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardWatch::~BackwardWatch() {
  at::removeCallback(callback_);
  watch = outer_;
}

std::unique_ptr<at::ObserverContext> BackwardWatch::see(const at::RecordFunction&) {
  // The node that runs first is that of the tensor whose backward() it is.
  if (watch != nullptr && !std::exchange(watch->has_seen_, true)) {
    watch->mean_ = mean_of(torch::autograd::get_current_node().get());
  }
  return nullptr;
}

void refuse_mean(const std::string& mean, int64_t parts) {
  throw UsageError(
      {"parallelize", "loss",
       fmt::format("is a mean over the rows of one of {} parts of the batch ({}), and gradients are summed: they would "
                   "be {} times too large",
                   parts, mean, parts),
       "", "set ParallelOptions::average, or use a sum divided by the rows of the whole batch"});
}

}  // namespace caravan
