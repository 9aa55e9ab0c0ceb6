#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "caravan/engine/engine.h"
#include "caravan/engine/stages/stage_links.h"
#include "caravan/module/replay_state.h"

namespace caravan {

/// The input of one micro-batch. Every stage of a pipeline is given it.
struct MicroBatch {
  at::Tensor ids;
  at::Tensor labels{};  ///< undefined: logits instead of a loss
  ForwardContext context{};
};

/// Calls Engine::begin_evaluation() and end_evaluation(), also if a pass between them throws.
class EvaluationScope {
 public:
  explicit EvaluationScope(Engine& engine, bool of_step = false) : engine_(engine) {
    engine_.begin_evaluation(of_step);
  }
  ~EvaluationScope() { engine_.end_evaluation(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Engine& engine_;
};

/// Runs the passes of a model through the stages that this rank holds, and sends what crosses between stages: all
/// outputs of a stage, and the gradients of those that require one. Stages in between pass on what a later stage needs.
class StageRunner final : public Passes {
 public:
  using Source = std::function<MicroBatch(int micro_batch)>;

  /// `engine` outlives this.
  explicit StageRunner(Engine& engine);

  /// Runs one step of the engine; asks `source` for each micro-batch before its forward. Returns this rank's summand of
  /// the loss: 0 unless it holds the last stage.
  double run_step(int num_micro_batches, Source source, StepExchange* exchange = nullptr);
  /// The same without reductions: see Engine::run_local_step.
  double run_local_step(int num_micro_batches, Source source);

  /// The same for stages that step on their own (UnshardedMemory::stashed): after the backward of `micro_batch`,
  /// `update` steps this rank's optimizer with engine.state().gradients.
  using Update = std::function<void(int micro_batch)>;
  double run_updates(int num_micro_batches, Source source, Update update);

  /// A forward pass without gradients, between engine.begin_evaluation() and end_evaluation(). Every rank calls it.
  /// Returns the output of the model on the ranks of its last stage, undefined on the others.
  at::Tensor evaluate(const MicroBatch& batch);

  /// Pipeline bubble of the last step: time in ms that this rank waited for other stages.
  double wait_ms() const noexcept { return links_.wait_ms(); }

 private:
  using Key = std::pair<int, int>;  ///< stage, micro-batch

  void forward(int stage, int micro_batch) override;
  void recompute(int stage, int micro_batch) override;
  void backward(int stage, int micro_batch) override;
  void update(int micro_batch) override { update_(micro_batch); }
  void transfer(const Action& entry) override;
  void poll() override { links_.poll(); }

  template <class Run>
  double run(int num_micro_batches, Source source, const Run& run_engine);
  void back_propagate(const Key& key, const Tensors& outputs);
  std::vector<Module*> blocks_of(int stage) const;
  Tensors inputs_of(const Key& key);
  Tensors run_stage(int stage, const Tensors& inputs, const MicroBatch& batch);
  bool is_here(int stage) const;
  bool crosses_into(int stage) const;

  Engine& engine_;
  int num_stages_ = 1;
  std::vector<std::pair<size_t, size_t>> blocks_;  ///< blocks of each stage
  bool draws_;                                     ///< a module may draw from torch's generator
  StageLinks links_;
  Source source_;
  Update update_ = [](int) {};
  double loss_ = 0;
  std::set<Key> recomputed_;                        ///< forwards of this step that keep no graph
  std::map<Key, Tensors> inputs_;                   ///< inputs of stages but the first, until their backward
  std::map<Key, Tensors> outputs_;                  ///< until their backward; without a graph, until they are sent
  std::map<Key, Tensors> gradients_;                ///< gradients of outputs that require one, from another rank
  std::map<Key, std::vector<bool>> promised_;       ///< which outputs of a forward without graph require a gradient
  std::map<Key, std::vector<ReplayState>> hidden_;  ///< state of the blocks before a forward that is recomputed
  std::map<Key, std::vector<std::unique_ptr<Rewound>>> rewound_;  ///< kept from the recompute to its backward
};

}  // namespace caravan
