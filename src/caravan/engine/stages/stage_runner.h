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

/// The passes of a model through the stages that this rank holds, and what crosses between stages: all outputs of a
/// stage, and the gradients of those that have one. What is to reach a later stage, stages in between pass on.
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

  /// The same where stages step on their own (UnshardedMemory::stashed): `update` steps the optimizer of this rank,
  /// with engine.state().gradients, after the backward of `micro_batch`.
  using Update = std::function<void(int micro_batch)>;
  double run_updates(int num_micro_batches, Source source, Update update);

  /// A forward pass without gradients, between engine.begin_evaluation() and end_evaluation(). Every rank calls it.
  /// Returns the output of the model on the ranks of its last stage, undefined on the others.
  at::Tensor evaluate(const MicroBatch& batch);

  /// In the last step, this rank has waited for other stages so long: its bubble.
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
  std::vector<std::pair<size_t, size_t>> blocks_;  ///< of each stage
  bool draws_;                                     ///< a module may draw from torch's generator
  StageLinks links_;
  Source source_;
  Update update_ = [](int) {};
  double loss_ = 0;
  std::set<Key> recomputed_;                        ///< of the step: whose forward keeps no graph
  std::map<Key, Tensors> inputs_;                   ///< of stages but the first, until their backward
  std::map<Key, Tensors> outputs_;                  ///< until their backward; without a graph, until they are passed on
  std::map<Key, Tensors> gradients_;                ///< of outputs that require one, from another rank
  std::map<Key, std::vector<bool>> promised_;       ///< which outputs of a forward without graph have a gradient
  std::map<Key, std::vector<ReplayState>> hidden_;  ///< of the blocks before a forward that is recomputed
  std::map<Key, std::vector<std::unique_ptr<Rewound>>> rewound_;  ///< from the recompute to its backward
};

}  // namespace caravan
