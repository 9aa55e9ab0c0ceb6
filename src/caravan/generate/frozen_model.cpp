#include "caravan/generate/frozen_model.h"

#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/engine/make_tiers.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {
namespace {

struct Degrees {
  int64_t pp = 1, ep = 1, tp = 1;
};

[[noreturn]] void refuse_degree(std::string_view what, const std::string& fact, const std::string& action) {
  throw UsageError({"load", std::string(what), fact, "", action});
}

std::string in_words(int64_t ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

/// With the option of the command that starts them.
std::string ranks_to_start(int64_t ranks) { return fmt::format("{} (--ranks {})", in_words(ranks), ranks); }

int64_t size_of(const Mesh& mesh, std::string_view axis) { return mesh.has(axis) ? mesh[axis].size() : 1; }

Degrees degrees_of(const LoadOptions& options, const Mesh& mesh) {
  for (const auto& [name, value] : {std::pair{"tp", options.tp}, {"pp", options.pp}, {"ep", options.ep}}) {
    if (value < 0) refuse_degree(name, fmt::format("{} is negative", value), "use 1 or more");
  }
  const int64_t ranks = mesh.size();
  Degrees degrees{size_of(mesh, "pp"), size_of(mesh, "ep"), size_of(mesh, "tp")};
  const bool is_laid_out = degrees.pp * degrees.ep * degrees.tp == ranks && ranks > 1;
  if (options.tp == 0 && options.pp == 0 && options.ep == 0 && is_laid_out) return degrees;
  degrees = {std::max(options.pp, 1), std::max(options.ep, 1), options.tp};
  const int64_t others = degrees.pp * degrees.ep;
  if (ranks % others != 0) {
    refuse_degree("ranks",
                  fmt::format("{} {} not divide into pp = {} times ep = {}", in_words(ranks),
                              ranks == 1 ? "does" : "do", degrees.pp, degrees.ep),
                  fmt::format("use {}", ranks_to_start((ranks / others + 1) * others)));
  }
  if (degrees.tp == 0) degrees.tp = ranks / others;
  if (degrees.tp * others != ranks) {
    refuse_degree("tp",
                  fmt::format("pp = {} times ep = {} times tp = {} is {}, but there {} {}", degrees.pp, degrees.ep,
                              degrees.tp, others * degrees.tp, ranks == 1 ? "is" : "are", in_words(ranks)),
                  fmt::format("use {}, or tp = {}", ranks_to_start(others * degrees.tp), ranks / others));
  }
  return degrees;
}

/// The action of a misfit names keys of recipes.
void refuse_misfit(const char* axis, const std::optional<Misfit>& misfit) {
  if (!misfit) return;
  std::string action = misfit->action.substr(0, misfit->action.find(", or set "));
  if (action.starts_with("use ") && action.find('=') == std::string::npos) {
    action = fmt::format("use {} = {}, and pp for the other ranks", axis, action.substr(4));
  }
  if (const size_t key = action.find("mesh."); key != std::string::npos) action.erase(key, 5);
  refuse_degree(axis, misfit->fact, action);
}

/// Before the model is opened.
void check_options(const LoadOptions& options) {
  if (options.dtype != at::kFloat && options.dtype != at::kBFloat16 && options.dtype != at::kHalf) {
    throw UsageError({"load", "dtype", fmt::format("{} is not computed in", c10::toString(options.dtype)), "",
                      "use fp32, bf16 or fp16"});
  }
  const bool is_on_disk = options.parameters == Tier::disk;
  if (is_on_disk && options.disk_dirs.empty()) {
    throw UsageError(
        {"load", "disk_dirs", "names no folder for weights that rest on disk", "", "set it to folders on local disks"});
  }
  if (!is_on_disk && !options.disk_dirs.empty()) {
    throw UsageError({"load", "disk_dirs",
                      fmt::format("names folders, but the weights rest on the {}", name(options.parameters)), "",
                      "use parameters = Tier::disk, or no folders"});
  }
}

StrategyChoice choice_of(const Degrees& degrees, const LoadOptions& options, const ModelConfig& config) {
  StrategyChoice choice;
  choice.tensor_parallel.degree = degrees.tp;
  choice.expert_parallel.degree = degrees.ep;
  choice.pipeline.degree = degrees.pp;
  if (degrees.tp > 1) refuse_misfit("tp", choice.tensor_parallel.misfit(config));
  refuse_misfit("ep", choice.expert_parallel.misfit(config, choice.tensor_parallel.parts()));
  if (degrees.pp > 1) {
    refuse_misfit("pp", choice.pipeline.misfit(config, 0));
    choice.pipeline.schedule.set("micro_batches", int64_t{1});
  }
  choice.sequences = choice.tensor_parallel.parts().rows * choice.expert_parallel.parts().rows;
  if (options.parameters == Tier::device) return choice;
  choice.offload.set("parameters", std::string(name(options.parameters)));
  std::vector<std::string> folders;
  for (const auto& folder : options.disk_dirs) folders.push_back(folder.string());
  choice.offload.set("disk_dirs", folders);
  return choice;
}

Mesh mesh_of(const Degrees& degrees, const Mesh& ranks) {
  std::vector<int> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto of = [](int64_t degree) { return static_cast<int>(degree); };
  return Mesh::create(ranks.world().split(all, "language model"),
                      used_axes(ordered_axes(1, of(degrees.pp), of(degrees.ep), 1, of(degrees.tp))));
}

/// An engine of the model that keeps no gradients, with memory for this rank's pieces.
std::unique_ptr<Engine> make_engine(Model& model, const StrategyChoice& choice, Mesh& mesh, at::ScalarType dtype,
                                    at::Device device) {
  Strategy strategy = make_strategy(choice, model, mesh);
  if (strategy.is_offloaded()) {  // disks are opened here, so that every rank throws what one of them finds
    const auto open_disks = [&] {
      strategy.tiers = make_tiers(strategy, FlatLayout(strategy, mesh), dtype, at::kCPU);
      if (strategy.parameters_tier == Tier::disk) strategy.tiers->disk();
    };
    all_or_none(mesh.world(), open_disks, "disks");
  }
  return std::make_unique<Engine>(model, mesh, std::move(strategy),
                                  Engine::Options{.device = device, .dtype = dtype, .initialise = false});
}

/// The model on one rank, with the weights in memory: in one block, which the system backs with huge pages. Each token
/// reads all of it, and small pages would cost a tenth of the bandwidth.
void allocate(Model& model, const Mesh& mesh, at::ScalarType dtype) {
  constexpr int64_t kAlignment = 64;  // elements
  const auto aligned = [](int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t total = 0;
  for (const Parameter* parameter : model.parameters())
    total += aligned(c10::multiply_integers(parameter->global_shape()));
  const at::Tensor all = at::empty({total}, dtype);
  const auto allocate = [&, begin = int64_t{0}](const Parameter&, const std::vector<int64_t>& shape) mutable {
    const int64_t elements = c10::multiply_integers(shape);
    return all.narrow(0, std::exchange(begin, begin + aligned(elements)), elements).view(shape);
  };
  model.materialise(mesh, {}, {.allocate = allocate, .initialise = false});
}

/// Sets this rank's piece of a parameter, wherever it rests.
void write_piece(const Engine* engine, const Parameter& parameter, const at::Tensor& piece, const at::Tensor& values) {
  if (engine == nullptr || !engine->state().values.is_on_disk()) {
    if (!values.is_same(piece)) piece.copy_(values);
    return;
  }
  const FlatState& state = engine->state();
  const int64_t begin = state.layout.slot(parameter).sharded_offset;
  const at::Tensor flat = values.view({-1});
  FlatMemory::for_each_part(0, flat.numel(), [&](int64_t offset, int64_t count) {
    state.values.write(begin + offset, flat.narrow(0, offset, count).to(state.values.scalar_type()));
  });
}

void fill_pieces(const StoredModel& stored, Model& model, const Engine* engine, const Mesh& mesh,
                 const TextModel::ShouldStop& should_stop) {
  const bool is_on_disk = engine != nullptr && engine->state().values.is_on_disk();
  for (const Parameter* parameter : model.parameters()) {
    if (should_stop && should_stop()) throw Interrupted({"load", stored.origin, "stopped on request", "", ""});
    const CheckpointPiece piece =
        checkpoint_piece(parameter->whole_name(), *parameter, parameter->sharded().detach(), mesh);
    if (piece.tensor.numel() == 0) continue;
    const bool is_read_in_place = !is_on_disk && piece.tensor.scalar_type() == at::kFloat;
    const at::Tensor values = is_read_in_place ? piece.tensor : at::empty(piece.tensor.sizes(), at::kFloat);
    stored.read(piece.name, piece.boxes, values);
    write_piece(engine, *parameter, piece.tensor, values);
  }
}

/// The axes of a run that split its model split the one beside it too.
StrategyChoice choice_beside(const Mesh& mesh, const ModelConfig& config, const std::string& key) {
  for (const char* axis : {"cp", "ep"}) {
    if (size_of(mesh, axis) == 1) continue;
    throw UsageError({"load", key, fmt::format("a model beside that of the run is not split over the axis {}", axis),
                      mesh.where(), "use mesh.dp, mesh.tp or mesh.pp"});
  }
  const Degrees degrees{.pp = size_of(mesh, "pp"), .tp = size_of(mesh, "tp")};
  try {
    return choice_of(degrees, {}, config);
  } catch (const UsageError& error) {
    const ErrorText& text = error.text();
    throw UsageError({"load", key,
                      fmt::format("names a model that mesh.{} does not split: {}", text.subject, text.fact),
                      mesh.where(), "use another mesh, or another model"});
  }
}

}  // namespace

FrozenModel::FrozenModel(Mesh mesh, const ModelConfig& config, const StrategyChoice& choice, at::ScalarType dtype,
                         at::Device device, bool has_engine)
    : mesh_(std::move(mesh)), model_(make_model(config)) {
  for (Parameter* parameter : model_->parameters()) parameter->set_requires_grad(false);
  if (has_engine) {
    engine_ = make_engine(*model_, choice, mesh_, dtype, device);
  } else {
    allocate(*model_, mesh_, dtype);
  }
}

FrozenModel::FrozenModel(FrozenModel&&) noexcept = default;
FrozenModel::~FrozenModel() = default;

void FrozenModel::fill(const StoredModel& stored, const TextModel::ShouldStop& should_stop) {
  all_or_none(
      mesh_.world(), [&] { fill_pieces(stored, *model_, engine_.get(), mesh_, should_stop); }, "weights");
  if (engine_) engine_->state().bump_version();
  folder_.emplace(Folder{stored.tokenizer, stored.text, stored.origin, stored.has_head});
}

FrozenModel FrozenModel::load(const std::filesystem::path& source, const Mesh& ranks, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  check_options(options);
  const Degrees degrees = degrees_of(options, ranks);
  std::optional<FrozenModel> made;
  with_model_folder(source, ranks.world(), [&](const std::filesystem::path& folder) {
    const StoredModel stored = open_same_model(folder, ranks.world(), options.weights);
    const StrategyChoice choice = choice_of(degrees, options, stored.config);
    stored.verify(ranks.world());
    Mesh mesh = mesh_of(degrees, ranks);
    const bool has_engine = mesh.size() > 1 || options.parameters != Tier::device;
    made.emplace(FrozenModel(std::move(mesh), stored.config, choice, options.dtype, at::kCPU, has_engine));
    made->fill(stored, options.should_stop);
  });
  made->text_model_ = made->engine_ ? std::make_unique<TextModel>(*made->engine_, options.should_stop)
                                    : std::make_unique<TextModel>(*made->model_, options.should_stop);
  return std::move(*made);
}

FrozenModel FrozenModel::beside(const std::filesystem::path& source, const Mesh& mesh, at::ScalarType dtype,
                                const std::string& key) {
  const at::NoGradGuard no_grad;
  const StoredModel stored = open_same_model(source, mesh.world(), StoredWeights::last);
  const StrategyChoice choice = choice_beside(mesh, stored.config, key);
  stored.verify(mesh.world());
  FrozenModel made(mesh, stored.config, choice, dtype, at::kCPU, /*has_engine=*/true);
  made.fill(stored, {});
  made.evaluation_ = std::make_unique<EvaluationScope>(*made.engine_);
  made.runner_ = std::make_unique<StageRunner>(*made.engine_);
  return made;
}

FrozenModel FrozenModel::rehearsed(const ModelConfig& config, const Mesh& mesh, at::ScalarType dtype,
                                   const std::string& key) {
  const at::NoGradGuard no_grad;
  FrozenModel made(mesh, config, choice_beside(mesh, config, key), dtype, at::kMeta, /*has_engine=*/true);
  made.evaluation_ = std::make_unique<EvaluationScope>(*made.engine_);
  made.runner_ = std::make_unique<StageRunner>(*made.engine_);
  return made;
}

at::Tensor FrozenModel::run(const MicroBatch& batch) {
  if (runner_ == nullptr) throw InternalError({"load", "a model", "for texts runs by its text_model()", "", ""});
  return runner_->evaluate(batch);
}

const TextModel& FrozenModel::text_model() const {
  if (text_model_ == nullptr) throw InternalError({"load", "a model", "beside a run continues no texts", "", ""});
  return *text_model_;
}

const FrozenModel::Folder& FrozenModel::of_folder() const {
  if (!folder_) throw InternalError({"load", "a model", "of a rehearsal has no folder", "", ""});
  return *folder_;
}

int64_t FrozenModel::parameter_bytes() const noexcept {
  int64_t bytes = 0;
  for (const Parameter* parameter : model_->parameters()) {
    if (parameter->sharded().defined()) bytes += static_cast<int64_t>(parameter->sharded().nbytes());
  }
  return bytes;
}

void FrozenModel::check_companion(const Tokenizer& tokenizer, const std::string& origin_of_other, const char* op,
                                  const char* subject) const {
  if (!has_head()) {
    throw UsageError(
        {op, subject, origin() + " is a base model, without a head", "", "use a model that continues texts"});
  }
  if (this->tokenizer().hash() != tokenizer.hash()) {
    throw UsageError({op, subject, fmt::format("{} has another tokenizer than {}", origin(), origin_of_other), "",
                      "use a model of the same family"});
  }
  if (config().vocabulary < tokenizer.vocab_size()) {
    throw DataError({op, origin(), "has fewer tokens than its tokenizer", "", "use another model"});
  }
}

}  // namespace caravan
