#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "caravan/cost/rehearsal.h"
#include "caravan/session/parallelize.h"

namespace torch::optim {
class Optimizer;
}

namespace caravan {

/// What a step is made of.
struct StepData {
  at::Tensor x, y;  ///< cut at dim 0
  ParallelModel::Loss loss{};
};

/// What prove() found.
struct ModuleProof {
  int num_ranks = 0;
  int num_parameters = 0;  ///< whose gradients were compared
  double tolerance = 0;
  double loss_error = 0;           ///< relative
  double largest_error = 0;        ///< of a gradient on some rank, relative in 2-norms
  std::string worst{};             ///< "gradient of blocks.0.weight on rank 1"
  std::optional<double> factor{};  ///< k, if that gradient is k times the one of one process
  bool holds() const noexcept { return loss_error <= tolerance && largest_error <= tolerance; }
  /// One line.
  std::string to_string() const;
};

/// Compares a step under some techniques with one process, which runs the whole batch without any: the loss, and each
/// parameter's gradient on each rank, piece by piece. Every rank calls it with the same net, techniques and `batch`,
/// the whole batch. The net has the values of rank 0 and no gradients afterwards.
///
/// The error of a gradient is |a - b| / (|b| + floor) in 2-norms; the floor is 1 % of the largest gradient by the mean
/// of its elements. `tolerance` by default: 2e-5 in fp32, sums in another order; 1e-10 in fp64; 5e-2 with 16 bits. What
/// looks at all rows of its input, such as batch norm, is another function of fewer rows (sync_batch_norm.h is not),
/// and so is dropout: set the net to eval(). Sends the parameters once, and what the techniques send.
///
/// Throws UsageError for a Module of this library (prove/prove.h compares these), for ranks with different batches, for
/// rows that do not divide evenly although they are averaged; and as parallelize().
ModuleProof prove(const Trainable& net, const Mesh& mesh, const std::vector<Technique>& techniques,
                  const StepData& batch, const ParallelOptions& options = {}, std::optional<double> tolerance = {});
ModuleProof prove(const Trainable& net, const Session& session, const std::vector<Technique>& techniques,
                  const StepData& batch, ParallelOptions options = {}, std::optional<double> tolerance = {});

/// Ranks that need not be there.
struct PlannedRanks {
  int dp = 1, pp = 1, ep = 1, cp = 1, tp = 1;
  int rank = 0;            ///< which of them
  int ranks_per_host = 0;  ///< that share memory; 0: none do
};

/// How a rank makes its optimizer, of torch::optim from its parameters or of this library from its flat state:
///   [](std::vector<at::Tensor> parameters) { return std::make_unique<torch::optim::AdamW>(parameters); }
///   [](FlatState& state) { return std::make_unique<AdamW>(state); }
///   MakeOptimizer::of_whole([](std::vector<at::Tensor> whole) { return std::make_unique<MyMuon>(whole); })
class MakeOptimizer {
 public:
  MakeOptimizer() = default;  ///< none
  template <class Function>
  requires(!std::is_same_v<Function, MakeOptimizer> &&
           (std::is_invocable_v<Function, std::vector<at::Tensor>> || std::is_invocable_v<Function, FlatState&>))
      MakeOptimizer(Function make) {  // NOLINT: converts
    if constexpr (std::is_invocable_v<Function, std::vector<at::Tensor>>) {
      of_torch_ = std::move(make);
    } else {
      own_ = std::move(make);
    }
  }
  /// One of torch::optim, made of ParallelModel::whole_parameters() and stepped in update_whole().
  template <class Function>
  requires(std::is_invocable_v<Function, std::vector<at::Tensor>>) static MakeOptimizer of_whole(Function make) {
    MakeOptimizer whole(std::move(make));
    whole.takes_whole_ = true;
    return whole;
  }
  bool is_given() const noexcept { return own_ != nullptr || of_torch_ != nullptr; }
  bool is_of_torch() const noexcept { return of_torch_ != nullptr; }
  bool takes_whole() const noexcept { return takes_whole_; }
  /// Makes one, and returns its update; nothing for none. `model` outlives that.
  std::function<void()> update_of(ParallelModel& model) const;

 private:
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)> of_torch_{};
  std::function<std::unique_ptr<Optimizer>(FlatState& state)> own_{};
  bool takes_whole_ = false;
};

/// What one rank of a job would allocate and send in a step (cost/rehearsal.h), found by running the step with nothing
/// in it. `rows` has the shapes of the rank's rows; its values do not matter. `optimizer` may be empty. The net is left
/// as it was. Sends nothing. Memory is counted while a Session or a Runtime exists.
/// Throws UsageError for a Module of this library (`caravan inspect` rehearses these); and as parallelize().
Rehearsal rehearse(const Trainable& net, const PlannedRanks& ranks, const std::vector<Technique>& techniques,
                   const StepData& rows, const MakeOptimizer& optimizer = {}, ParallelOptions options = {});

/// The same for the first rank of each stage, as text: memory by kind at the peak and what runs then, and by axis and
/// verb how often and how many bytes are sent in a step.
std::string inspect(const Trainable& net, PlannedRanks ranks, const std::vector<Technique>& techniques,
                    const StepData& rows, const MakeOptimizer& optimizer = {}, const ParallelOptions& options = {});

}  // namespace caravan
