#include "caravan/generate/load.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/load_model.h"
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

StrategyChoice choice_of(const Degrees& degrees, const ModelConfig& config) {
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
  for (Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
  Strategy strategy = make_strategy(choice, model, mesh);
  return std::make_unique<Engine>(model, mesh, std::move(strategy),
                                  Engine::Options{.dtype = dtype, .initialise = false});
}

void fill_pieces(const StoredModel& stored, Model& model, const Mesh& mesh) {
  for (const Parameter* parameter : model.parameters()) {
    const CheckpointPiece piece =
        checkpoint_piece(parameter->whole_name(), *parameter, parameter->sharded().detach(), mesh);
    if (piece.tensor.numel() == 0) continue;
    const at::Tensor read = piece.tensor.to(at::kFloat);  // itself, or to be rounded
    stored.read(piece.name, piece.boxes, read);
    if (!read.is_same(piece.tensor)) piece.tensor.copy_(read);
  }
}

}  // namespace

LanguageModel::LanguageModel(Mesh mesh, std::unique_ptr<Model> model, std::unique_ptr<Engine> engine,
                             Tokenizer tokenizer, TextSettings text, std::string origin)
    : mesh_(std::move(mesh)),
      model_(std::move(model)),
      engine_(std::move(engine)),
      text_model_(engine_ ? std::make_unique<TextModel>(*engine_) : std::make_unique<TextModel>(*model_)),
      tokenizer_(std::move(tokenizer)),
      text_(std::move(text)),
      settings_(text_.generation()),
      origin_(std::move(origin)) {}

LanguageModel load(const std::filesystem::path& source, const Mesh& ranks, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  Communicator& world = ranks.world();
  if (options.dtype != at::kFloat && options.dtype != at::kBFloat16 && options.dtype != at::kHalf) {
    throw UsageError({"load", "dtype", fmt::format("{} is not computed in", c10::toString(options.dtype)), "",
                      "use fp32, bf16 or fp16"});
  }
  const Degrees degrees = degrees_of(options, ranks);
  std::optional<StoredModel> stored;
  all_or_none(
      world, [&] { stored.emplace(open_model(source)); }, "model");
  check_same_on_all_ranks(world, "load", {{"the model", stored->identity}}, "model");
  const StrategyChoice choice = choice_of(degrees, stored->config);
  stored->verify(world);
  Mesh mesh = mesh_of(degrees, ranks);
  std::unique_ptr<Model> model = make_model(stored->config);
  std::unique_ptr<Engine> engine;
  if (mesh.size() > 1) {
    engine = make_engine(*model, choice, mesh, options.dtype);
  } else {
    const auto allocate = [&](const Parameter&, const std::vector<int64_t>& shape) {
      return at::empty(shape, options.dtype);
    };
    for (Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
    model->materialise(mesh, {}, {.allocate = allocate, .initialise = false});
  }
  all_or_none(
      world, [&] { fill_pieces(*stored, *model, mesh); }, "weights");
  if (engine) engine->state().bump_version();
  return {std::move(mesh),         std::move(model),         std::move(engine), std::move(stored->tokenizer),
          std::move(stored->text), std::move(stored->origin)};
}

std::vector<Continuation> LanguageModel::generate(std::span<const Prompt> prompts, const GeneratorOptions& options,
                                                  const ShowTexts& show, const OnEnd& on_end) {
  for (const Prompt& prompt : prompts) {
    if (!prompt.options.truncate) check_prompt(prompt.text, tokenizer_, config());
  }
  return Generator(*text_model_, tokenizer_, generation_tokens(text_.tokens, settings_), options)
      .run(prompts, show, on_end);
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
