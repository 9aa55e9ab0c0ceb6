#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caravan/base/system/file_lock.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/session/kept.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace caravan {

class Attachments;
class Optimizer;
class OptimizerState;
class WholeParameters;

/// How far a program of one's own has come.
struct Progress {
  int64_t step = 0;                           ///< optimizer steps done; names the checkpoint
  std::map<std::string, int64_t> counters{};  ///< whatever else it counts: epochs, samples
};

/// The checkpoints of a program of one's own, in a folder `run`: parameters and buffers of its module under their own
/// names, the state, the groups and the options of its torch::optim optimizer, the steps of its schedulers, its counts,
/// and what it adds by name. The format, and what holds after a crash, are those of save_checkpoint. A checkpoint has
/// no layout: what N ranks saved, sharded or not, M ranks load in their own way.
///
///   Ddp ddp(model, session.mesh());
///   torch::optim::AdamW optimizer(ddp.parameters());
///   torch::optim::StepLR scheduler(optimizer, 1000);
///   ModuleCheckpoint checkpoint("runs/mine", ddp, &optimizer);
///   checkpoint.add_scheduler(scheduler);
///   for (Progress at = checkpoint.load(); at.step < kSteps;) {
///     ..
///     if (++at.step % 100 == 0) checkpoint.save(at);
///   }
///
/// A load restores the learning rate of each group, because schedulers change it: what the program was started with no
/// longer counts. All other options must be those of the checkpoint. After the load a program may set any option.
///
/// Not kept: the state of communication hooks. Buffers are those of rank 0.
class ModuleCheckpoint {
 public:
  /// `engine`, `optimizer` and `whole` outlive this. With `whole`, optimizers have its tensors in place of parts of
  /// parameters, and what they keep is that of the owners. Without an optimizer only the module is saved, and only it
  /// is loaded, also from a checkpoint that has more. `keep`: the number of checkpoints that stay; 0: all.
  /// Throws UsageError for an optimizer other than SGD, Adam, AdamW, Adagrad and RMSprop, or whose tensors are not
  /// engine.parameters(); for a parameter whose name begins as those of training state do; and for a model with buffers
  /// in stages, of which no rank has all.
  ModuleCheckpoint(std::filesystem::path run, Engine& engine, torch::optim::Optimizer* optimizer = nullptr,
                   int64_t keep = 2, const WholeParameters* whole = nullptr);
  /// With an optimizer of this library, wherever its state rests. Its options are not compared; the learning rate is
  /// that of each step. `whole` is for other optimizers, which are added.
  ModuleCheckpoint(std::filesystem::path run, Engine& engine, Optimizer& optimizer, int64_t keep = 2,
                   const WholeParameters* whole = nullptr);
  ~ModuleCheckpoint();

  /// Saves the steps that `scheduler` has counted, and restores them: it goes on where it was. `scheduler` is of the
  /// optimizer, and outlives this. Every rank of every run adds the same schedulers in the same order, before it loads.
  /// Throws UsageError without an optimizer of torch::optim, or one of the program's that is derived from its class.
  void add_scheduler(torch::optim::LRScheduler& scheduler);
  /// Keeps something else: see Kept, and Attachments::add for what it throws. Every rank adds the same, before it
  /// loads.
  void add(const std::string& name, Kept kept);

  /// Every rank calls it, between steps, with the same progress and the same values of what was added. Values that are
  /// not finite are saved too. Sends a few texts, for each parameter 16 bytes and 16 more for each option, and what
  /// Attachments::take does. Throws as save_checkpoint; UsageError for a folder that another process writes to, or that
  /// holds checkpoints which were not loaded: they would be mixed with those of this run; and for progress or options
  /// that differ between ranks.
  SavedCheckpoint save(const Progress& progress);

  /// Loads the newest checkpoint of the run and returns its progress; if there is none, step 0. Every rank calls it.
  Progress load();
  /// Loads `checkpoint`. If it is of this run, later ones are set aside as step_NNNNNN.abandoned. Throws DataError for
  /// a damaged checkpoint, one written with another kind of optimizer, with other options (apart from learning rates),
  /// groups or another number of schedulers, other names of what was added, or one whose tensors are not those of the
  /// module and the optimizer, listing what is missing, unexpected or of another shape. What one rank throws, all ranks
  /// throw. A checkpoint that does not fit changes nothing, unless a load() of the program itself throws. One of an
  /// earlier version has no options: those of the program stay.
  Progress load(const std::filesystem::path& checkpoint);

 private:
  void take_folder(bool starts);
  void set_later_aside(const std::filesystem::path& checkpoint, int64_t step);
  void refuse_other_kind(const CheckpointReader& reader) const;
  void check_schedulers(const OptimizerRecord& saved) const;
  bool is_module_alone() const;

  std::filesystem::path run_;
  Engine& engine_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<Attachments> attachments_;
  std::unique_ptr<OptimizerState> optimizer_;  ///< null: none of torch::optim
  Optimizer* own_optimizer_ = nullptr;         ///< null: none of this library
  std::vector<torch::optim::LRScheduler*> schedulers_;
  TrainingState state_;
  int64_t keep_;
  FileLock lock_;          ///< on rank 0, once it writes
  bool is_taken_ = false;  ///< on rank 0: the folder is this run's
};

}  // namespace caravan
