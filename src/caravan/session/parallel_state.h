#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/session/loss_check.h"
#include "caravan/session/parallelize.h"
#include "caravan/session/whole_parameters.h"

namespace caravan {

/// Throws UsageError.
[[noreturn]] void refuse_model(const std::string& subject, const std::string& fact, const std::string& action);

/// What a ParallelModel is made of. Hooks in graphs hold it weakly.
struct ParallelModel::State : std::enable_shared_from_this<State> {
  State(std::unique_ptr<ModuleAdapter> adapted, Module& model, const Mesh& on, Strategy strategy,
        const ParallelOptions& given, at::Device device);
  ~State();

  /// From here on the device holds at most `bytes`; 0: no limit. Throws ResourceError on every rank if one holds more.
  void set_budget(int64_t bytes);

  uint64_t seed() const { return options.seed.value_or(1); }
  /// Ranks of dp, times micro-batches.
  int64_t num_parts_of_rows() const { return mesh["dp"].size() * options.micro_batches; }
  bool is_pipelined() const { return !engine.strategy().pipeline_axis.empty(); }
  bool is_meta() const { return engine.state().values.is_meta(); }
  ForwardContext context(int micro_batch) const { return {.seed = seed(), .step = step, .micro_batch = micro_batch}; }
  double gradient_scale() const { return options.average ? 1.0 / static_cast<double>(num_parts) : 1.0; }
  bool checks_loss() const { return !options.average && num_parts > 1 && step == 0; }

  /// In the first step: ranks that compute parts of one batch have the same rows; if it `is_whole`, all ranks do.
  void check_same(const at::Tensor& x, const at::Tensor& y, bool is_whole) const;
  /// Where losses are averaged: means of unequal numbers of rows are not the mean of the batch.
  void check_rows(int64_t rows) const;
  /// Outputs of a Model whose layers or sequences are split are parts.
  void check_whole_outputs(const char* op) const;
  /// Throws NumericsError on every rank unless all weights are finite.
  void check_finite();

  void check_may_attach() const;
  /// `op` comes before the first load() and save().
  void check_no_checkpoint(const char* op) const;
  /// What torch::optim updates has memory, and no update is delayed.
  void check_in_memory(const char* op) const;

  /// One of the last steps with whole parameters was followed by update_whole().
  void check_updated() const;

  double run_step(const std::function<MicroBatch(int)>& batch_of);
  /// The output of the last stage, on every rank of the pipeline.
  at::Tensor from_last_stage(const at::Tensor& output) const;

  // Steps of the caller's own forwards and backwards.
  void begin_forward(int64_t rows);
  /// The backward of the caller's loss comes to an output of a forward.
  void see_gradient(const std::shared_ptr<bool>& is_reached);
  void end_backward();
  void scale_gradients();
  /// Of the gradients of all ranks.
  double norm_of_gradients();

  ModuleCheckpoint& checkpoint_in(const std::filesystem::path& run);

  std::unique_ptr<ModuleAdapter> adapter;  ///< null: a Module of this library
  Mesh mesh;
  ParallelOptions options;
  Engine engine;
  StageRunner runner;
  Hook loss_hook;
  /// In a step, on the last stage: the loss of the outputs of a micro-batch.
  std::function<at::Tensor(const Tensors& outputs, int micro_batch)> loss_of{};
  int64_t num_parts = 1;                            ///< of a step: ranks with their own loss, times micro-batches
  int64_t step = 0;                                 ///< steps done
  std::unique_ptr<WholeParameters> whole{};         ///< null: none were taken, or all ranks hold all
  bool takes_whole = false;                         ///< whole_parameters() was called
  int64_t whole_step = 0;                           ///< steps done then, at the last update or load
  int64_t num_forwards = 0, num_backwards = 0;      ///< in the step
  int64_t num_losses = 0;                           ///< losses whose backward() was called in the step
  int last_backward = -1;                           ///< graph task of the last one
  std::unique_ptr<BackwardWatch> backward_watch{};  ///< from a forward of the first step until the next forward
  std::optional<GradNorm> norm{};                   ///< of the last step, if its gradients went to disk
  MemoryCounter* counter = nullptr;                 ///< whose budget is set; null: no limit
  torch::optim::Optimizer* optimizer = nullptr;
  Optimizer* own_optimizer = nullptr;
  std::vector<torch::optim::LRScheduler*> schedulers{};
  std::vector<std::pair<std::string, Kept>> kept{};                                     ///< what was attached by name
  std::map<std::filesystem::path, std::unique_ptr<ModuleCheckpoint>> checkpoints{};     ///< by run
  std::map<std::filesystem::path, int64_t> last_steps{};                                ///< loaded or saved, by run
  std::map<std::filesystem::path, std::chrono::steady_clock::time_point> last_times{};  ///< the same
};

/// The same path for all ways to write a folder, whether it exists or not.
std::filesystem::path key_of_run(const std::filesystem::path& run);

}  // namespace caravan
