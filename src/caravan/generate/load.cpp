#include "caravan/generate/load.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/make_tiers.h"
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
                  fmt::format("{} ranks do not divide into pp = {} times ep = {}", ranks, degrees.pp, degrees.ep),
                  fmt::format("use {} ranks", (ranks / others + 1) * others));
  }
  if (degrees.tp == 0) degrees.tp = ranks / others;
  if (degrees.tp * others != ranks) {
    refuse_degree("tp",
                  fmt::format("pp = {} times ep = {} times tp = {} is {}, but there {} {}", degrees.pp, degrees.ep,
                              degrees.tp, others * degrees.tp, ranks == 1 ? "is" : "are", in_words(ranks)),
                  fmt::format("use tp = {}, or {}", ranks / others, in_words(others * degrees.tp)));
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
std::unique_ptr<Engine> make_engine(Model& model, const StrategyChoice& choice, Mesh& mesh, at::ScalarType dtype) {
  Strategy strategy = make_strategy(choice, model, mesh);
  if (strategy.is_offloaded()) {  // disks are opened here, so that every rank throws what one of them finds
    const auto open_disks = [&] {
      strategy.tiers = make_tiers(strategy, FlatLayout(strategy, mesh), dtype, at::kCPU);
      if (strategy.parameters_tier == Tier::disk) strategy.tiers->disk();
    };
    all_or_none(mesh.world(), open_disks, "disks");
  }
  return std::make_unique<Engine>(model, mesh, std::move(strategy),
                                  Engine::Options{.dtype = dtype, .initialise = false});
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

}  // namespace

LanguageModel::LanguageModel(Mesh mesh, std::unique_ptr<Model> model, std::unique_ptr<Engine> engine,
                             const TextModel::ShouldStop& should_stop, Tokenizer tokenizer, TextSettings text,
                             std::string origin, bool has_head)
    : mesh_(std::move(mesh)),
      model_(std::move(model)),
      engine_(std::move(engine)),
      text_model_(engine_ ? std::make_unique<TextModel>(*engine_, should_stop)
                          : std::make_unique<TextModel>(*model_, should_stop)),
      tokenizer_(std::move(tokenizer)),
      text_(std::move(text)),
      settings_(text_.generation()),
      origin_(std::move(origin)),
      has_head_(has_head) {}

LanguageModel load(const std::filesystem::path& source, const Mesh& ranks, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  Communicator& world = ranks.world();
  check_options(options);
  const Degrees degrees = degrees_of(options, ranks);
  std::optional<StoredModel> stored;
  all_or_none(
      world, [&] { stored.emplace(open_model(source, options.weights)); }, "model");
  check_same_on_all_ranks(world, "load", {{"the model", stored->identity}}, "model");
  const StrategyChoice choice = choice_of(degrees, options, stored->config);
  stored->verify(world);
  Mesh mesh = mesh_of(degrees, ranks);
  std::unique_ptr<Model> model = make_model(stored->config);
  for (Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
  std::unique_ptr<Engine> engine;
  if (mesh.size() > 1 || options.parameters != Tier::device) {
    engine = make_engine(*model, choice, mesh, options.dtype);
  } else {
    allocate(*model, mesh, options.dtype);
  }
  all_or_none(
      world, [&] { fill_pieces(*stored, *model, engine.get(), mesh, options.should_stop); }, "weights");
  if (engine) engine->state().bump_version();
  return {std::move(mesh),
          std::move(model),
          std::move(engine),
          options.should_stop,
          std::move(stored->tokenizer),
          std::move(stored->text),
          std::move(stored->origin),
          stored->has_head};
}

std::vector<Continuation> LanguageModel::generate(std::span<const Prompt> prompts, const GeneratorOptions& options,
                                                  const ShowTexts& show, const OnEnd& on_end) {
  if (!has_head_) {
    throw UsageError({"generate", "model", origin_ + " is a base model, without a head that continues texts", "",
                      "use embed, or train it with train.init_from"});
  }
  const SpecialTokens special = generation_tokens(text_.tokens, settings_);
  for (const Prompt& prompt : prompts) {
    if (!prompt.options.truncate) check_prompt(prompt, tokenizer_, special, config());
  }
  return Generator(*text_model_, tokenizer_, special, options).run(prompts, show, on_end);
}

Continuation LanguageModel::generate(std::string_view prompt, const ContinuationOptions& options,
                                     const ShowText& show) {
  const Prompt one{std::string(prompt), options};
  return generate({&one, 1}, {}, [&](size_t, std::string_view text) { return show(text); }).front();
}

std::string LanguageModel::generate(std::string_view prompt, const ContinuationOptions& options) {
  const Prompt one{std::string(prompt), options};
  return generate({&one, 1}, {}).front().text;
}

int64_t LanguageModel::parameter_bytes() const noexcept {
  int64_t bytes = 0;
  for (const Parameter* parameter : model_->parameters()) {
    if (parameter->sharded().defined()) bytes += static_cast<int64_t>(parameter->sharded().nbytes());
  }
  return bytes;
}

}  // namespace caravan
