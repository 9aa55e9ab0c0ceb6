#pragma once

#include <map>
#include <memory>
#include <vector>

#include "caravan/engine/activations.h"
#include "caravan/engine/attendance.h"
#include "caravan/engine/engine_options.h"
#include "caravan/engine/flat/unsharded.h"
#include "caravan/engine/flat/weight_versions.h"
#include "caravan/engine/gradients/gradient_sums.h"
#include "caravan/engine/model_buffers.h"
#include "caravan/engine/step_recorder.h"
#include "caravan/engine/table_cursor.h"
#include "caravan/engine/weight_work.h"
#include "caravan/module/module.h"
#include "caravan/schedule/passes.h"

namespace caravan {

/// Runs a model under a strategy: owns the memory of parameters and gradients, and performs the actions of the table
/// when the model reaches their positions.
///
/// Two ways to run a step, on every rank:
///   begin_step(m); m forwards and backwards by the caller; finish_step(). The first such step gathers and reduces
///     without overlap and records the order of events; the ranks compare it, and later steps follow a schedule built
///     from it.
///   run_step(m, passes): follows the table of strategy.passes.
/// Afterwards, until the next step begins (Strategy::lends_gradients), every parameter's gradient, summed over ranks
/// and micro-batches, is in state().gradients, in the layout of the sharded parameter, and is the .grad of
/// parameters(). A sum, not a mean: divide the loss by the global count (ForwardContext::loss_scale).
///
/// Forward passes outside of a step, or with Phase::evaluate, gather what they need and free it.
class Engine : private GradientSink {
 public:
  using Options = EngineOptions;
  /// Every rank of `mesh` calls it with the same model and strategy. Parameters and buffers that have values become
  /// those of coordinate 0 of the data axes. `model` outlives this.
  /// Throws UsageError on every rank if names, shapes, dtypes, options or tables differ between ranks, or for an
  /// invalid strategy.
  Engine(Module& model, const Mesh& mesh, Strategy strategy, const Options& options);
  Engine(Module& model, const Mesh& mesh, Strategy strategy) : Engine(model, mesh, std::move(strategy), Options{}) {}
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void begin_step(int num_micro_batches = 1);
  void finish_step();
  /// begin_step() for ranks that run out of batches at different times:
  ///   while (engine.begin_join_step(has_batch)) { if (has_batch) forwards and backwards; finish_step(); update; }
  /// Returns false, on every rank, when no rank has a batch: then no step has begun. A rank without a batch runs no
  /// unit; it takes part in gathers and reductions with zero gradients, and its `num_micro_batches` is ignored. Divide
  /// the loss by the count over the ranks that have a batch (num_joined()), not over all ranks. Sends an all-reduce of
  /// 24 + 16 x (data-parallel ranks) bytes a step; the first step, if a rank has no batch in it, gathers all units at
  /// once. (As torch.distributed.algorithms.join.) Throws UsageError on every rank if those with a batch announce
  /// different numbers of micro-batches, or ranks that share one batch differ.
  bool begin_join_step(bool has_batch, int num_micro_batches = 1);
  /// Number of parts of the batch of this step: one for each data-parallel rank that has a batch.
  int num_joined() const noexcept { return attendance_.num_here; }
  /// With `exchange`, for a strategy that keeps versions, collectives neither gather nor reduce: `exchange` moves
  /// gradients and values, and state().gradients is not set. Then ranks step independently; each step must reduce each
  /// group once.
  void run_step(int num_micro_batches, Passes& passes, StepExchange* exchange = nullptr);
  /// The same passes without any reduction: local_gradient() is this rank's summand until the next step begins.
  void run_local_step(int num_micro_batches, Passes& passes);
  at::Tensor local_gradient(const Parameter& parameter) { return gradients_->local(parameter); }

  /// With Strategy::steps_early: updates a group, whose gradients are complete (GradientSums::result), in a step.
  void set_group_step(std::function<void(int group)> step) { group_step_ = std::move(step); }
  GradientSums& gradients() noexcept { return *gradients_; }
  /// Fills the unsharded parameters that keep their memory with the values of all ranks. Every rank calls it, between
  /// steps.
  void unshard();

  /// Encloses forward passes of all ranks, each of which calls both. In between, parameters that several stages share
  /// are available, and unsharded ones that keep their memory (UnshardedMemory) are gathered once: parameters must not
  /// change. `of_step`: a delayed update may be missing. An error of a lost peer at the end is thrown by the next call.
  void begin_evaluation(bool of_step = false);
  void end_evaluation() noexcept;
  /// Makes up for a delayed update (Strategy::delay_after), as an evaluation does: call it before a checkpoint.
  void catch_up();

  Module& model() noexcept { return model_; }
  FlatState& state() noexcept { return state_; }
  const FlatState& state() const noexcept { return state_; }
  const Strategy& strategy() const noexcept { return strategy_; }
  const Mesh& mesh() const noexcept { return mesh_; }
  /// The trained sharded parameters, with .grad after a step, for an optimizer. If they are shards, the optimizer must
  /// be element-wise.
  std::vector<at::Tensor> parameters() const;
  /// The strategy's schedule of this rank in run_step with this number of micro-batches. The first call is collective.
  const Schedule& table(int num_micro_batches);
  /// The schedule recorded in the first begin_step and finish_step with this number of micro-batches; null before.
  const Schedule* recorded(int num_micro_batches) const;

  const WeightVersions* versions() const noexcept { return versions_.get(); }  ///< null unless stages step alone
  /// Dtype in which gradients are reduced.
  at::ScalarType reduce_dtype() const noexcept { return gradients_->reduce_dtype(); }

  /// Bytes of sharded and unsharded parameters and gradients that this rank has allocated so far, without activations.
  int64_t bytes_per_rank() const noexcept;
  /// Bytes of transient buffers of a step, included in bytes_per_rank().
  int64_t buffer_bytes() const noexcept { return pool_->bytes() + (versions_ == nullptr ? 0 : versions_->bytes()); }

 private:
  enum class Mode : uint8_t { idle, recording, following };

  // GradientSink
  int64_t open_step() const noexcept override { return mode_ == Mode::idle ? 0 : num_steps_; }
  Sum sum_of(Parameter& parameter) override;
  void accumulated(Parameter& parameter) override { gradients_->accumulated(parameter); }
  void added_early(Parameter& parameter) override { gradients_->added_early(parameter); }
  void confirmed(Parameter& parameter) override { gradients_->confirmed(parameter); }
  void withdrawn(Parameter& parameter) override { gradients_->withdrawn(parameter); }
  void defer(Parameter& parameter, std::function<void()> work) override;

  // Setup (engine_setup.cpp).
  void check_agreement() const;
  void check_dtypes() const;
  void take_parameters();
  void take_values(const Slot& slot);
  void share_values();
  void add_unit_hooks();

  // Units (engine_units.cpp).
  Tensors run_unit(int unit, Module& module, Tensors inputs, const ForwardContext& context, const Next& next);
  Tensors run_alone(int unit, Tensors inputs, const ForwardContext& context, const Next& next);
  Tensors run_aside(int unit, Tensors inputs, const ForwardContext& context, const Next& next);
  void announce_backward(int unit, int micro_batch, const Tensors& outputs);
  bool is_on_this_stage(int group) const;
  /// Gathers what `unit` reads and frees what no unit that is running reads.
  void gather_for(int unit);
  void free_all();
  /// After the last read of unsharded parameters that other ranks read in place too: returns when all ranks have read
  /// them.
  void end_reading();
  void start(int num_micro_batches);
  void begin_table(const Schedule& table);
  void set_exchange(StepExchange* exchange) noexcept;
  void follow(Passes& passes);
  void perform_until_event();
  /// The execution has reached `event`: performs the actions that precede it.
  void reach(const Action& event);
  void perform(const Action& entry);
  void update(const Action& entry);
  void move(const Action& entry);
  void run_pass(const Action& first, Passes& passes);
  void check_skipped(const Action& first) const;
  void run_deferred(const Action& weight);
  struct Reset;
  void end_step();
  [[noreturn]] void refuse(const Action& event, const char* fact) const;

  // Recorded and joint steps (engine_record.cpp).
  void finish_recording();
  void agree_on_used();
  void follow_absent();
  bool holds_all() const noexcept { return mode_ == Mode::recording && !attendance_.is_full(); }
  void check_present() const;
  Module& model_;
  Mesh mesh_;
  Strategy strategy_;
  Options options_;
  WeightWork weight_work_;
  FlatState state_;
  std::unique_ptr<BufferPool> pool_;
  TransferQueue transfers_;
  std::unique_ptr<UnshardedParameters> unsharded_;
  std::unique_ptr<GradientSums> gradients_;
  std::unique_ptr<ModelBuffers> buffers_;
  std::unique_ptr<WeightVersions> versions_;
  std::unique_ptr<Activations> activations_;   ///< null unless some unit moves its activations
  std::vector<Parameter*> trained_;            ///< parameters whose sink this is
  std::vector<at::Tensor> sharded_gradients_;  ///< by slot; become .grad
  std::vector<at::Tensor> no_gradients_;       ///< by slot; .grad of unsharded parameters of user code that have no
                                               ///< sharded one
  std::vector<Hook> hooks_;
  std::map<int, Schedule> strategy_tables_;  ///< by number of micro-batches
  std::map<int, Schedule> recorded_;

  Mode mode_ = Mode::idle;
  Attendance attendance_;
  bool is_evaluating_ = false;
  int num_exceptions_ = 0;  ///< exceptions in flight when the evaluation began
  int num_micro_batches_ = 0;
  StepRecorder recorder_;
  TableCursor cursor_;
  Passes* passes_ = nullptr;
  StepExchange* exchange_ = nullptr;
  std::function<void(int)> group_step_;
  std::unique_ptr<HostGuard> host_guard_;                          ///< in a step
  std::vector<int> num_forwards_;                                  ///< forwards in this step, by unit
  std::vector<int> running_;                                       ///< units whose forward runs, outermost first
  int last_alone_ = -1;                                            ///< the last unit that ran outside of a step
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  ///< for hooks in graphs that outlive this
  int64_t num_steps_ = 0;                                          ///< number of steps begun
};

}  // namespace caravan
