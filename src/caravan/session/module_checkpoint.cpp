#include "caravan/session/module_checkpoint.h"

#include <algorithm>
#include <optional>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/base/text.h"
#include "caravan/checkpoint/publish.h"
#include "caravan/comm/agree.h"
#include "caravan/comm/same.h"
#include "caravan/session/optimizer_record.h"
#include "caravan/session/optimizer_state.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

Box whole_box(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

/// A tensor that every rank has.
CheckpointPiece common_piece(const std::string& name, const at::Tensor& tensor, const Mesh& mesh) {
  const std::vector<int64_t> shape = tensor.sizes().vec();
  return {.name = name,
          .shape = shape,
          .box = whole_box(shape),
          .tensor = tensor.contiguous(),
          .replica = mesh.rank(),
          .num_replicas = mesh.size(),
          .replica_axes = "world"};
}

std::string name_of(const OptimizerState& optimizer, size_t field, const Parameter& parameter) {
  return fmt::format("{}{}.{}.{}", kOptimizerTensors, optimizer.kind(), optimizer.fields()[field], parameter.name());
}

std::string name_of_count(const OptimizerState& optimizer, const Parameter& parameter) {
  return fmt::format("{}{}.step.{}", kOptimizerTensors, optimizer.kind(), parameter.name());
}

bool has(int64_t mask, size_t field) { return (mask >> field & 1) != 0; }

at::Tensor read_piece(CheckpointReader& reader, const std::string& name, const Box& box, at::TensorOptions options) {
  at::Tensor piece = at::empty(box.size, options.requires_grad(false));
  reader.read(name, box, piece);
  return piece;
}

void check_names(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    if (!is_training_state(parameter->name())) continue;
    throw UsageError({"checkpoint", parameter->name(), "is named as training state is in checkpoints", "",
                      fmt::format("register the module under a name other than {}",
                                  parameter->name().substr(0, parameter->name().find('.')))});
  }
}

}  // namespace

ModuleCheckpoint::ModuleCheckpoint(fs::path run, Engine& engine, torch::optim::Optimizer* optimizer, int64_t keep)
    : run_(std::move(run)), engine_(engine), parameters_(engine.model().parameters()), keep_(keep) {
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
  if (optimizer != nullptr) optimizer_ = std::make_unique<OptimizerState>(*optimizer, parameters_);
}

ModuleCheckpoint::~ModuleCheckpoint() = default;

void ModuleCheckpoint::add_scheduler(torch::optim::LRScheduler& scheduler) {
  if (!optimizer_) {
    throw UsageError({"checkpoint", "add_scheduler", "there is no optimizer that the scheduler could be of",
                      engine_.mesh().where(), "give the optimizer to the constructor"});
  }
  optimizer_->add_scheduler(scheduler);
}

/// On rank 0, before the first write. A run that `starts` anew finds no checkpoint there.
void ModuleCheckpoint::take_folder(bool starts) {
  if (is_taken_) return;
  std::error_code error;
  fs::create_directories(run_, error);
  if (error) throw_file_error("checkpoint", run_, "cannot be made", error.value());
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

std::pair<std::vector<int64_t>, std::vector<int64_t>> ModuleCheckpoint::agreed_state() const {
  const std::vector<int64_t> counts = optimizer_->counts();
  std::vector<int64_t> all = optimizer_->masks();
  all.insert(all.end(), counts.begin(), counts.end());
  take_maxima(engine_.mesh().world(), all, "optimizer state");
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(parameters_.size());
  return {{all.begin(), middle}, {middle, all.end()}};
}

std::vector<CheckpointPiece> ModuleCheckpoint::module_pieces() const {
  const Mesh& mesh = engine_.mesh();
  std::vector<CheckpointPiece> pieces;
  for (const Parameter* parameter : parameters_) {
    pieces.push_back(checkpoint_piece(parameter->name(), *parameter, parameter->rest().detach().contiguous(), mesh));
  }
  for (const auto& [name, buffer] : engine_.model().buffers()) {
    CheckpointPiece piece = common_piece(name, buffer.detach(), mesh);
    if (mesh.rank() != 0) continue;  // others may differ: Buffers::local
    piece.num_replicas = 1;
    piece.replica_axes = "rank 0";
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<CheckpointPiece> ModuleCheckpoint::optimizer_pieces() const {
  const Mesh& mesh = engine_.mesh();
  const auto [masks, counts] = agreed_state();
  std::vector<CheckpointPiece> pieces;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (masks[i] == 0) continue;
    for (size_t field = 0; field < optimizer_->fields().size(); ++field) {
      if (!has(masks[i], field)) continue;
      pieces.push_back(checkpoint_piece(name_of(*optimizer_, field, *parameters_[i]), *parameters_[i],
                                        optimizer_->tensor(i, field), mesh));
    }
    pieces.push_back(common_piece(name_of_count(*optimizer_, *parameters_[i]), at::tensor({counts[i]}), mesh));
  }
  return pieces;
}

SavedCheckpoint ModuleCheckpoint::save(const Progress& progress) {
  const at::NoGradGuard no_grad;
  Communicator& world = engine_.mesh().world();
  std::vector<SharedFact> facts{{"step", fmt::format("{}", progress.step)},
                                {"steps of schedulers", optimizer_ ? join(optimizer_->scheduler_steps()) : ""}};
  for (const auto& [name, count] : progress.counters) facts.push_back({name, fmt::format("{}", count)});
  check_same_on_all_ranks(world, "checkpoint", facts);
  on_rank_0(
      world, [&] { take_folder(/*starts=*/true); }, "checkpoint");
  CheckpointInfo info{.step = progress.step, .optimizer_steps = progress.step, .counters = progress.counters};
  std::vector<CheckpointPiece> pieces = module_pieces();
  if (optimizer_) {
    info.optimizer = record_of(*optimizer_, parameters_, world);
    for (CheckpointPiece& piece : optimizer_pieces()) pieces.push_back(std::move(piece));
  }
  return save_checkpoint(run_, info, pieces, world, keep_);
}

Progress ModuleCheckpoint::load() {
  Communicator& world = engine_.mesh().world();
  const auto find_newest = [&]() -> std::string {
    take_folder(/*starts=*/false);
    const auto found = list_checkpoints(run_);
    return found.empty() ? "" : fs::absolute(found.back()).string();
  };
  const std::string newest = text_of_rank_0(world, find_newest, "checkpoint");
  return newest.empty() ? Progress{} : load(newest);
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
  const auto all_wanted = wanted(*reader);
  all_or_none(
      world,
      [&] {
        // Of another module, check() lists the tensors.
        const bool has_all = std::ranges::all_of(
            parameters_, [&](const Parameter* one) { return reader->manifest().tensors.contains(one->name()); });
        if (optimizer_ && has_all) check_record(info.optimizer, own, *optimizer_, parameters_);
        reader->check(all_wanted);
      },
      "checkpoint");
  all_or_none(
      world,
      [&] {
        read_module(*reader);
        if (optimizer_) read_optimizer(*reader);
        if (optimizer_) restore_record(info.optimizer, *optimizer_, parameters_);
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

void ModuleCheckpoint::refuse_other_kind(const CheckpointReader& reader) const {
  const std::string prefix = optimizer_ ? fmt::format("{}{}.", kOptimizerTensors, optimizer_->kind()) : "";
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!optimizer_ || !name.starts_with(kOptimizerTensors) || name.starts_with(prefix)) continue;
    const size_t start = std::string_view(kOptimizerTensors).size();
    throw DataError({"checkpoint", "optimizer",
                     fmt::format("its state is that of {}, but the optimizer is {}",
                                 name.substr(start, name.find('.', start) - start), optimizer_->kind()),
                     engine_.mesh().where(), "use the same optimizer, or none to load the module alone"});
  }
}

std::vector<std::pair<std::string, ModuleCheckpoint::Shape>> ModuleCheckpoint::wanted(
    const CheckpointReader& reader) const {
  std::vector<std::pair<std::string, Shape>> all;
  for (const Parameter* parameter : parameters_) all.emplace_back(parameter->name(), parameter->global_shape());
  for (const auto& [name, buffer] : engine_.model().buffers()) all.emplace_back(name, buffer.sizes().vec());
  if (!optimizer_) {
    for (const auto& [name, tensor] : reader.manifest().tensors) {
      if (is_training_state(name)) all.emplace_back(name, tensor.shape);
    }
    return all;
  }
  const auto masks = agreed_state().first;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    for (size_t field = 0; field < optimizer_->fields().size(); ++field) {
      if (has(masks[i], field)) all.emplace_back(name_of(*optimizer_, field, parameter), parameter.global_shape());
    }
    if (masks[i] != 0) all.emplace_back(name_of_count(*optimizer_, parameter), Shape{1});
  }
  return all;
}

void ModuleCheckpoint::read_module(CheckpointReader& reader) {
  const Mesh& mesh = engine_.mesh();
  for (const Parameter* parameter : parameters_) {
    const at::Tensor rest = parameter->rest().detach();
    const Box box = local_box(parameter->global_shape(), parameter->rest_layout(), mesh, parameter->name());
    rest.copy_(read_piece(reader, parameter->name(), box, rest.options()));
  }
  for (const auto& [name, buffer] : engine_.model().buffers()) {
    buffer.detach().copy_(read_piece(reader, name, whole_box(buffer.sizes().vec()), buffer.options()));
  }
}

void ModuleCheckpoint::read_optimizer(CheckpointReader& reader) {
  const std::vector<int64_t>& masks = optimizer_->masks();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (masks[i] == 0) continue;
    const Parameter& parameter = *parameters_[i];
    const Box box = local_box(parameter.global_shape(), parameter.rest_layout(), engine_.mesh(), parameter.name());
    std::vector<at::Tensor> tensors(optimizer_->fields().size());
    for (size_t field = 0; field < tensors.size(); ++field) {
      if (!has(masks[i], field)) continue;
      tensors[field] = read_piece(reader, name_of(*optimizer_, field, parameter), box, parameter.rest().options());
    }
    const at::Tensor count =
        read_piece(reader, name_of_count(*optimizer_, parameter), {{0}, {1}}, at::TensorOptions(at::kLong));
    optimizer_->set(i, count.item<int64_t>(), std::move(tensors));
  }
}

}  // namespace caravan
