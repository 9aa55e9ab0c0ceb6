#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/engine/engine.h"
#include "caravan/session/kept.h"
#include "caravan/session/module_checkpoint.h"
#include "caravan/session/session.h"
#include "caravan/session/techniques.h"
#include "caravan/session/trainable.h"

namespace caravan {

class Optimizer;

struct ParallelOptions {
  /// Micro-batches of a step, whose gradients add up (gradient accumulation): with a pipeline what its ranks work on at
  /// once. Only the last backward of a step reduces gradients (PyTorch's no_sync). Not 0.
  int64_t micro_batches = 1;
  /// False: gradients are summed over ranks and micro-batches, so a loss is a sum divided by the rows of all of them.
  /// True: they are averaged, so a loss is a mean over the rows that it is given, as with PyTorch's DDP.
  bool average = false;
  /// A parameter that took no part in a step counts as zero; else it is an error that names it.
  bool find_unused_parameters = false;
  /// Every step runs the same units in the same order. False: see DdpOptions.
  bool static_graph = true;
  /// What stages pass on has the same shapes in every micro-batch of a step. False: rows may be uneven (Strategy).
  bool has_static_shapes = true;
  Buffers buffers = Buffers::broadcast;  ///< of batch norm and its like
  std::optional<uint64_t> seed{};        ///< of random numbers; default: that of the session, or 1
};

/// When save_if_due() saves; always when some rank was told to stop.
struct SaveWhen {
  int64_t steps = 0;      ///< at every step that is a multiple of it; 0: none
  double minutes = 0;     ///< so long after the last load or save of this run, by the clock of rank 0; 0: never
  int64_t last_step = 0;  ///< at this step, the last of the run; 0: not known
};

struct DueSave {
  std::optional<SavedCheckpoint> saved{};  ///< nothing: no save was due
  bool stop = false;                       ///< leave the loop: some rank was told to, and this step is saved
};

/// A model under some techniques: see parallelize().
class ParallelModel {
 public:
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// As parallelize(), on a mesh with an axis dp.
  ParallelModel(const Trainable& net, const Mesh& mesh, const std::vector<Technique>& techniques,
                const ParallelOptions& options = {}, at::Device device = at::kCPU);
  ~ParallelModel();
  ParallelModel(ParallelModel&&) noexcept;
  ParallelModel& operator=(ParallelModel&&) = delete;

  /// A step on this rank's rows, split into the micro-batches: forward, loss, backward, reductions. `x` and `y` are cut
  /// at dim 0. Ranks of one pipeline get the same rows (Session::rows). Returns the loss of all ranks, their sum or
  /// mean as ParallelOptions::average says, on every rank; all-reduces 8 bytes for it. Then optimizer.step().
  /// Throws UsageError for fewer rows than micro-batches, for a loss of more than one element, if losses are averaged
  /// over ranks that have different numbers of rows, and, in the first step, for ranks of one replica with different
  /// rows and for a loss whose last operation is a mean although gradients are summed.
  double step(const at::Tensor& x, const at::Tensor& y, const Loss& loss);
  /// The same of a Model of this library, which has its own loss, the mean over the target tokens of the batch. Every
  /// rank gives the whole batch, [rows, positions], and computes its piece; ParallelOptions::average does not matter.
  double step(const at::Tensor& ids, const at::Tensor& labels);

  /// A forward of the caller's own. While gradients are recorded it begins a step, or its next micro-batch; the
  /// backward() of the last one reduces gradients, and ends the step. In between the caller does what he likes. With
  /// gradients off (at::NoGradGuard) it evaluates: under FSDP every rank calls it. Neither this nor evaluate() calls
  /// eval() of a torch::nn::Module, which dropout and batch norm need.
  /// Throws UsageError for a pipeline, whose stages step() runs; for more forwards than micro-batches; and in
  /// backward(), in the first step, as step() for a mean.
  Tensors forward(Tensors inputs);
  /// Forgets the forwards of a step that got no backward, because of an exception or a batch that is skipped. Every
  /// rank calls it; the next forward begins the step again.
  void abandon_step();
  /// Of one tensor, or of a list: model({x, mask}).
  template <std::same_as<at::Tensor> T>
  at::Tensor operator()(const T& input) {
    return forward({input}).at(0);
  }
  Tensors operator()(Tensors inputs) { return forward(std::move(inputs)); }
  /// A forward without gradients, also through the stages of a pipeline, whose last one sends its output to the others.
  /// Every rank calls it.
  at::Tensor evaluate(const at::Tensor& input);

  /// What an optimizer of torch::optim updates: pieces of this rank, with .grad after a step, until the next forward in
  /// training begins one. An optimizer that is not element-wise takes whole_parameters(). Throws UsageError for
  /// parameters or gradients on disk: an optimizer of this library updates them there (optim/optimizer.h: `AdamW
  /// optimizer(model.engine().state())`).
  std::vector<at::Tensor> parameters() const;
  /// The same for an optimizer that needs whole matrices, such as Muon or Shampoo: whole tensors, whatever technique
  /// shards them. Where ranks have parts, each parameter goes to one rank that holds some of it, about equally many
  /// elements to each, so this rank gets some of them, perhaps none. Such a tensor, and what an optimizer keeps for it,
  /// take memory beside the parts; its .grad is there inside update_whole() only. Every rank calls it, before the first
  /// load() or save(). Throws UsageError, naming the first parameter, for layers that are split (tensor and expert
  /// parallelism), tiles, and state outside of the device.
  std::vector<at::Tensor> whole_parameters();
  /// Steps their optimizer: model.update_whole([&] { muon.step(); }). Brings parts of values and gradients to the
  /// owners, runs `update`, which sends nothing itself, and brings the values back. Every rank calls it after a step
  /// and clip_grad_norm(). Of x bytes in n parts the ranks send 3 (n - 1) / n x, and another x for each further copy of
  /// the parts (HSDP); none of it where parameters are whole. What `update` throws on one rank, all throw. The
  /// fourth step in a row without it, counted from whole_parameters(), load() or the last of them, throws UsageError: a
  /// step that is to change nothing may leave it out, or give a function that does nothing. If the first three
  /// leave a tensor as it was and change others, one rank gives a warning of torch that names it.
  void update_whole(const std::function<void()>& update);
  /// Scales the gradients of all ranks so that their common norm is at most `max_norm`, and returns the norm before.
  /// After a step, on every rank. All-reduces 560 bytes.
  double clip_grad_norm(double max_norm);

  /// The optimizer, of torch::optim or of this library, and the schedulers whose state checkpoints keep, before the
  /// first load() or save(): see ModuleCheckpoint, which says what it throws.
  void attach(torch::optim::Optimizer& optimizer);
  void attach(Optimizer& optimizer);
  void attach(torch::optim::LRScheduler& scheduler);
  /// Whatever else goes on where it was, by a name: numbers, texts, tensors, generators, samplers, types with save and
  /// load, and an optimizer of one's own. See Kept; it outlives the model. Throws UsageError for a name that is taken
  /// or has other characters than letters, digits, - and _; and where parameters are sharded, for an optimizer that
  /// needs whole ones, or visits state of them, and was not made of whole_parameters(). Of one that does not say,
  /// rank 0 gives a warning of torch (c10::WarningHandler), which names the risk.
  void attach(const std::string& name, Kept kept);
  /// The newest checkpoint in `run`, if there is one: its progress, else step 0. Every rank calls it.
  Progress load(const std::filesystem::path& run);
  /// Saves a checkpoint in `run`, where the newest two stay. Every rank calls it, between steps. Throws NumericsError
  /// for weights that are not finite, and UsageError for a step before the last one that was loaded or saved there.
  SavedCheckpoint save(const std::filesystem::path& run, const Progress& progress);
  /// Saves if that is due, and not twice the same step. Every rank calls it after every step, with the same arguments,
  /// in place of Session::should_stop(): a request that comes between the two would end the loop without a save. Sends
  /// 16 bytes. The first call takes over the signals, as should_stop() does. Throws as save().
  DueSave save_if_due(const std::filesystem::path& run, const Progress& progress, const SaveWhen& when);

  Module& module() noexcept;
  Engine& engine() noexcept;
  const Mesh& mesh() const noexcept;
  /// Of a batch: ranks with rows of their own, times micro-batches.
  int64_t num_parts() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Arranges `net` for the ranks of the session by some techniques, in any order: they are the entries of recipes, with
/// the same settings and checks (docs/README.md lists them).
///
///   Session session({.pp = 2});
///   auto model = parallelize(net, session, {pipeline({.schedule = "1f1b", .micro_batches = 8}),
///                                           fsdp(), recompute({.modules = {"blocks.*"}})});
///   torch::optim::AdamW optimizer(model.parameters(), 3e-4);
///   ...
///   double loss = model.step(x, y, loss_of);
///   optimizer.step();
///
/// Without a data-parallel technique it is ddp(). Every rank calls it with the same net and techniques; parameters
/// become those of rank 0. The net's own tensors are the unsharded parameters, whose memory comes and goes under FSDP.
/// Throws UsageError, naming the nearest valid choice: for two techniques of one family, for what cannot stand beside
/// each other or on this mesh, for a pattern that no unit fits; for splits of layers (tensor, context and expert
/// parallelism) of a torch::nn::Module, which has no table of how to split it, and tiles of one; for "auto" in
/// offload(); for fp16, which needs a loss scale; and
/// for techniques that step in a way of their own (DiLoCo, servers without a barrier, PipeDream), which
/// `caravan train` runs.
ParallelModel parallelize(const Trainable& net, const Session& session, const std::vector<Technique>& techniques,
                          ParallelOptions options = {});

}  // namespace caravan
