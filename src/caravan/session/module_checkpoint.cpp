#include "caravan/session/module_checkpoint.h"

#include <algorithm>
#include <optional>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/attached_tensors.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/attachments.h"
#include "caravan/session/optimizer_record.h"
#include "caravan/session/optimizer_state.h"
#include "caravan/session/scheduler_steps.h"
#include "caravan/session/whole_parameters.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

void check_names(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    if (!is_training_state(parameter->name())) continue;
    throw UsageError({"checkpoint", parameter->name(), "is named as training state is in checkpoints", "",
                      fmt::format("register the module under a name other than {}",
                                  parameter->name().substr(0, parameter->name().find('.')))});
  }
}

}  // namespace

ModuleCheckpoint::ModuleCheckpoint(fs::path run, Engine& engine, torch::optim::Optimizer* optimizer, int64_t keep,
                                   const WholeParameters* whole)
    : run_(std::move(run)), engine_(engine), parameters_(updated_parameters(engine, whole)), keep_(keep) {
  if (keep_ < 0) {
    throw UsageError({"checkpoint", "keep", fmt::format("{} checkpoints cannot be kept", keep_), "",
                      "use 1 or more, or 0 to keep all"});
  }
  check_names(parameters_);
  if (!engine.strategy().pipeline_axis.empty() && !engine.model().buffers().empty()) {
    throw UsageError({"checkpoint", engine.model().buffers().front().first,
                      "is a buffer of a model in stages: no rank has the buffers of all stages", engine.mesh().where(),
                      "use layers without buffers, such as LayerNorm in place of BatchNorm"});
  }
  state_.add(state_of_model(engine));
  attachments_ = std::make_unique<Attachments>(engine, whole);
  state_.add(*attachments_);
  if (optimizer == nullptr) return;
  optimizer_ = std::make_unique<OptimizerState>(*optimizer, parameters_);
  state_.add(*optimizer_);
}

ModuleCheckpoint::ModuleCheckpoint(fs::path run, Engine& engine, Optimizer& optimizer, int64_t keep,
                                   const WholeParameters* whole)
    : ModuleCheckpoint(std::move(run), engine, nullptr, keep, whole) {
  own_optimizer_ = &optimizer;
  state_.add(optimizer);
}

ModuleCheckpoint::~ModuleCheckpoint() = default;

void ModuleCheckpoint::add_scheduler(torch::optim::LRScheduler& scheduler) {
  if (!optimizer_ && !attachments_->has_rates()) {
    throw UsageError({"checkpoint", "add_scheduler", "there is no optimizer of torch::optim that it could be of",
                      engine_.mesh().where(), "give the optimizer to the constructor, or add it first"});
  }
  schedulers_.push_back(&scheduler);
}

void ModuleCheckpoint::add(const std::string& name, Kept kept) { attachments_->add(name, std::move(kept)); }

/// Whatever else a checkpoint has is not looked at.
bool ModuleCheckpoint::is_module_alone() const {
  return !optimizer_ && own_optimizer_ == nullptr && attachments_->is_empty();
}

/// On rank 0, before the first write. A run that `starts` anew finds no checkpoint there.
void ModuleCheckpoint::take_folder(bool starts) {
  if (is_taken_) return;
  create_folders("checkpoint", run_, "cannot be made");
  lock_ = FileLock(run_ / ".lock", fmt::format("process {}", ::getpid()), "checkpoint");
  if (!lock_.is_held() && lock_.is_supported()) {
    throw UsageError({"checkpoint", run_.string(), "is in use by another run",
                      lock_.holder().empty() ? "" : "its owner: " + lock_.holder(),
                      "wait for that run or stop it, or name another folder"});
  }
  restore_checkpoints(run_);
  if (const auto found = list_checkpoints(run_); starts && !found.empty()) {
    lock_ = {};
    throw UsageError({"checkpoint", run_.string(),
                      fmt::format("holds {}, which this run has not loaded", found.back().filename().string()), "",
                      "load() it first, or name another folder"});
  }
  is_taken_ = true;
}

SavedCheckpoint ModuleCheckpoint::save(const Progress& progress) {
  const at::NoGradGuard no_grad;
  Communicator& world = engine_.mesh().world();
  std::vector<SharedFact> facts{{"step", fmt::format("{}", progress.step)},
                                {"steps of schedulers", join(scheduler_steps(schedulers_))}};
  for (const auto& [name, count] : progress.counters) facts.push_back({name, fmt::format("{}", count)});
  check_same_on_all_ranks(world, "checkpoint", facts);
  on_rank_0(
      world, [&] { take_folder(/*starts=*/true); }, "checkpoint");
  CheckpointInfo info{.step = progress.step,
                      .optimizer_steps = own_optimizer_ != nullptr ? own_optimizer_->num_steps() : progress.step,
                      .counters = progress.counters};
  if (optimizer_) info.optimizer = record_of(*optimizer_, parameters_, world);
  info.optimizer.schedulers = scheduler_steps(schedulers_);
  if (optimizer_) optimizer_->agree(world);
  attachments_->take(/*compares=*/true);
  engine_.catch_up();
  return save_checkpoint(run_, info, checkpoint_pieces(state_, engine_.mesh()), world, keep_);
}

Progress ModuleCheckpoint::load() {
  Communicator& world = engine_.mesh().world();
  const auto find_newest = [&]() -> std::string {
    take_folder(/*starts=*/false);
    const auto found = list_checkpoints(run_);
    return found.empty() ? "" : fs::absolute(found.back()).string();
  };
  const std::string newest = text_of_rank_0(world, find_newest, "checkpoint");
  if (newest.empty()) return {};
  try {
    return load(newest);
  } catch (...) {  // the checkpoints in the folder are not those of this run
    is_taken_ = false;
    lock_ = FileLock();
    throw;
  }
}

Progress ModuleCheckpoint::load(const fs::path& checkpoint) {
  const at::NoGradGuard no_grad;
  Communicator& world = engine_.mesh().world();
  std::optional<CheckpointReader> reader;
  std::string hash;
  all_or_none(
      world,
      [&] {
        reader.emplace(checkpoint);
        hash = content_hash(MappedFile(checkpoint / kManifestName, "checkpoint").bytes()).hex();
        refuse_other_kind(*reader);
      },
      "checkpoint");
  const CheckpointInfo& info = reader->info();
  check_same_on_all_ranks(world, "checkpoint",
                          {{"the checkpoint", fmt::format("{} {}", checkpoint_name(info.step), hash)}});
  reader->verify(world);
  const OptimizerRecord own = optimizer_ ? record_of(*optimizer_, parameters_, world) : OptimizerRecord{};
  if (optimizer_) optimizer_->agree(world);
  attachments_->take(/*compares=*/false);
  StateReader::Options options;
  if (!optimizer_ && own_optimizer_ == nullptr) {
    options.may_leave_out = [alone = is_module_alone()](const std::string& name) {
      return is_training_state(name) && (alone || !name.starts_with(kAttachedTensors));
    };
  }
  all_or_none(
      world,
      [&] {
        if (!is_module_alone()) attachments_->expect(reader->manifest());
      },
      "checkpoint");
  StateReader state(state_, engine_.mesh(), *reader, options);
  all_or_none(
      world,
      [&] {
        // Of another module, check() lists the tensors.
        const bool has_all = std::ranges::all_of(
            parameters_, [&](const Parameter* one) { return reader->manifest().tensors.contains(one->whole_name()); });
        if (optimizer_ && has_all) check_record(info.optimizer, own, *optimizer_, parameters_);
        if (!is_module_alone()) check_schedulers(info.optimizer);
        state.check();
      },
      "checkpoint");
  all_or_none(
      world,
      [&] {
        attachments_->load_values(*reader);
        state.read();
        attachments_->load_optimizers();
        if (!is_module_alone()) set_scheduler_steps(schedulers_, info.optimizer.schedulers);
        if (optimizer_) restore_record(info.optimizer, *optimizer_, parameters_);
        if (own_optimizer_ != nullptr) own_optimizer_->set_num_steps(info.optimizer_steps);
        engine_.state().bump_version();
        if (world.rank() == 0) set_later_aside(checkpoint, info.step);
      },
      "checkpoint");
  return {.step = info.step, .counters = info.counters};
}

/// If the checkpoint that was loaded is of this run.
void ModuleCheckpoint::set_later_aside(const fs::path& checkpoint, int64_t step) {
  std::error_code error;
  if (!fs::equivalent(fs::absolute(checkpoint).parent_path(), run_, error)) return;
  take_folder(/*starts=*/false);
  abandon_later_checkpoints(run_, step);
}

void ModuleCheckpoint::check_schedulers(const OptimizerRecord& saved) const {
  const bool may_have_some = optimizer_ || attachments_->has_rates();
  if (!may_have_some || saved.schedulers.size() == schedulers_.size()) return;
  throw DataError({"checkpoint", "schedulers",
                   fmt::format("the checkpoint has the steps of {}, but the program has added {}",
                               saved.schedulers.size(), schedulers_.size()),
                   "", "add_scheduler() the same ones before load(), and those that shall start anew after it"});
}

void ModuleCheckpoint::refuse_other_kind(const CheckpointReader& reader) const {
  if (!optimizer_ && own_optimizer_ == nullptr) return;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!name.starts_with(kOptimizerTensors)) continue;
    const size_t start = std::string_view(kOptimizerTensors).size();
    const std::string word = name.substr(start, name.find('.', start) - start);
    const std::string saved = is_kind_of_torch(word) ? word : "", own = optimizer_ ? optimizer_->kind() : "";
    if (saved == own) continue;
    const auto text = [](const std::string& kind) { return kind.empty() ? "one of this library" : kind; };
    throw DataError({"checkpoint", "optimizer",
                     fmt::format("its state is that of {}, but the optimizer is {}", text(saved), text(own)),
                     engine_.mesh().where(), "use the same optimizer, or none to load the module alone"});
  }
}

}  // namespace caravan
