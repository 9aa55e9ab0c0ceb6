#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "caravan/engine/engine.h"

namespace caravan {

/// What one micro-batch is computed from. Every stage of a pipeline is given it.
struct MicroBatch {
  at::Tensor ids;
  at::Tensor labels{};  ///< undefined: logits instead of a loss
  ForwardContext context{};
};

/// begin_evaluation() and end_evaluation(), also if a pass between them throws.
class EvaluationScope {
 public:
  explicit EvaluationScope(Engine& engine) : engine_(engine) { engine_.begin_evaluation(); }
  ~EvaluationScope() { engine_.end_evaluation(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Engine& engine_;
};

/// The passes of a model through the stages that this rank holds, and what crosses between stages: the first output of
/// a stage, and its gradient.
class StageRunner final : public Passes {
 public:
  using Source = std::function<MicroBatch(int micro_batch)>;

  /// `engine` outlives this.
  explicit StageRunner(Engine& engine);

  /// One step of the engine; `source` is asked for each micro-batch before its forward. Returns this rank's summand of
  /// the loss: 0 unless it holds the last stage.
  double run_step(int num_micro_batches, Source source, StepExchange* exchange = nullptr);
  /// The same without reductions: see Engine::run_local_step.
  double run_local_step(int num_micro_batches, Source source);

  /// A forward pass without gradients, between engine.begin_evaluation() and end_evaluation(). Every rank calls it.
  /// Returns the output of the model on the ranks of its last stage, undefined on the others.
  at::Tensor evaluate(const MicroBatch& batch);

 private:
  using Key = std::pair<int, int>;  ///< stage, micro-batch

  void forward(int stage, int micro_batch) override;
  void backward(int stage, int micro_batch) override;
  void transfer(const Action& entry) override;

  template <class Run>
  double run(Source source, const Run& run_engine);
  Tensors run_stage(int stage, const at::Tensor& input, const MicroBatch& batch);
  int rank_of(int stage) const;
  void send(const at::Tensor& tensor, int from_rank, int to_rank, const Call& call);
  at::Tensor recv(int from_rank, int to_rank, const Call& call);

  Engine& engine_;
  int num_stages_ = 1;
  std::vector<std::pair<size_t, size_t>> blocks_;  ///< of each stage
  Source source_;
  double loss_ = 0;
  std::map<Key, at::Tensor> inputs_;     ///< of stages, where they come from another one
  std::map<Key, at::Tensor> outputs_;    ///< first outputs of forwards whose backward is to come
  std::map<Key, at::Tensor> gradients_;  ///< of such outputs, from the next stage
  std::vector<Work> sends_;
};

}  // namespace caravan
