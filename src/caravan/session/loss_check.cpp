#include "caravan/session/loss_check.h"

#include <cmath>
#include <map>

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

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
  const auto* mean = dynamic_cast<const MeanBackward0*>(node);
  const bool is_mean =
      (mean != nullptr && mean->self_sym_numel != 1) || dynamic_cast<const MeanBackward1*>(node) != nullptr ||
      is_mean_of<NllLossBackward0, NllLoss2DBackward0, MseLossBackward0, SmoothL1LossBackward0, HuberLossBackward0,
                 BinaryCrossEntropyBackward0, BinaryCrossEntropyWithLogitsBackward0, SoftMarginLossBackward0,
                 MultiMarginLossBackward0, MultilabelMarginLossBackward0>(node);
  return is_mean ? node->name() : "";
}

}  // namespace

std::string mean_that_makes(const at::Tensor& loss) { return mean_of(loss.grad_fn().get()); }

/// What the watches of a thread have seen: of each backward(), by its id, what makes its tensor.
struct SeenBackwards {
  int num_watches = 0;
  at::CallbackHandle callback = 0;
  std::map<int, std::string> means{};
};

BackwardWatch::BackwardWatch() : seen_(seen_here()) {
  if (seen_->num_watches++ > 0) return;
  seen_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&BackwardWatch::see).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardWatch::~BackwardWatch() {
  if (--seen_->num_watches > 0) return;
  seen_->means.clear();
  if (seen_ == seen_here()) at::removeCallback(seen_->callback);  // on another thread: it finds no watch
}

const std::shared_ptr<SeenBackwards>& BackwardWatch::seen_here() {
  thread_local const auto seen = std::make_shared<SeenBackwards>();
  return seen;
}

std::unique_ptr<at::ObserverContext> BackwardWatch::see(const at::RecordFunction&) {
  SeenBackwards& seen = *seen_here();
  if (seen.num_watches == 0) return nullptr;
  // The node that runs first is that of the tensor whose backward() it is.
  const int task = torch::autograd::get_current_graph_task_id();
  if (!seen.means.contains(task)) seen.means[task] = mean_of(torch::autograd::get_current_node().get());
  return nullptr;
}

std::string BackwardWatch::mean() const {
  const auto found = seen_->means.find(torch::autograd::get_current_graph_task_id());
  return found == seen_->means.end() ? "" : found->second;
}

void check_kind(const std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>& loss,
                const at::Tensor& output, const at::Tensor& target, bool average, int64_t parts) {
  if (output.is_meta() || output.dim() == 0 || target.dim() == 0 || output.size(0) != target.size(0)) return;
  const int64_t half = output.size(0) / 2;
  if (half == 0) return;
  const at::NoGradGuard no_grad;
  const auto of = [&](int64_t first, int64_t rows) {
    return loss(output.narrow(0, first, rows), target.narrow(0, first, rows)).item<double>();
  };
  const double ratio = (of(0, half) + of(half, half)) / of(0, 2 * half);
  if (!average && std::abs(ratio - 2) < 0.1) refuse_mean("of two halves it is twice as large as of both", parts);
  if (average && std::abs(ratio - 1) < 1e-3) {
    throw UsageError({"parallelize", "loss",
                      fmt::format("is a sum over its rows, and is averaged over {} parts of the batch", parts), "",
                      "use a mean over the rows that it gets, or leave ParallelOptions::average out"});
  }
}

void refuse_mean(const std::string& mean, int64_t parts) {
  throw UsageError(
      {"parallelize", "loss",
       fmt::format("is a mean over the rows of one of {} parts of the batch ({}), and gradients are summed: they would "
                   "be {} times too large",
                   parts, mean, parts),
       "", "set ParallelOptions::average, or use a sum divided by the rows of the whole batch, or scale the mean"});
}

}  // namespace caravan
