#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/checkpoint/huggingface.h"
#include "caravan/checkpoint/load_model.h"
#include "caravan/checkpoint/manifest.h"
#include "caravan/comm/world.h"
#include "caravan/generate/generate.h"
#include "caravan/train/import.h"
#include "caravan/train/run_folder.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

/// The mesh of a command that is one rank.
Mesh mesh_of_one() { return Mesh::create(make_world("auto", {}, open_store({})), {{"dp", 1}}); }

/// What a command means by a source: itself, or the newest run.
fs::path source_or_newest(const std::string& source, const char* command) {
  if (!source.empty()) return source;
  fs::path newest = newest_run();
  if (newest.empty()) {
    throw UsageError(
        {command, "source", "no run under runs/ holds a checkpoint", "", "train one first, or name a folder"});
  }
  return newest;
}

std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt) return *arguments.prompt;
  if (::isatty(STDIN_FILENO) == 1) return Recipe().sample.prompt;
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? Recipe().sample.prompt : text;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  const Recipe::Sample defaults;
  const SamplingOptions sampling{.temperature = arguments.temperature.value_or(defaults.temperature),
                                 .top_k = arguments.top_k.value_or(defaults.top_k),
                                 .top_p = arguments.top_p.value_or(defaults.top_p),
                                 .seed = arguments.seed};
  sampling.validate();
  const int64_t num_tokens = arguments.tokens.value_or(defaults.tokens);
  if (num_tokens < 0)
    throw UsageError({"generate", "--tokens", fmt::format("{} is below 0", num_tokens), "", "use 0 or more"});
  const fs::path source = source_or_newest(arguments.source, "generate");
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one());
  const std::string prompt = prompt_of(arguments);
  const auto show = [](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  };
  show(prompt);
  caravan::generate(*loaded.model, loaded.tokenizer, prompt, num_tokens, sampling, show);
  show("\n");
  return 0;
}

int export_model(const ExportArguments& arguments) {
  const fs::path named = arguments.directory;
  std::error_code error;
  const bool is_run =
      arguments.from.empty() && (!list_checkpoints(named).empty() || fs::exists(named / "manifest.json", error));
  if (!is_run && arguments.from.empty() && named.parent_path().filename() == "runs") {
    throw UsageError({"export", named.string(), "is no run that holds a checkpoint",
                      "looked up from " + fs::current_path().string(),
                      "name a run, or a folder outside runs/ and --from RUN"});
  }
  const fs::path source = is_run ? named : source_or_newest(arguments.from, "export");
  const fs::path target = is_run ? named / "huggingface" : named;
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one());
  NamedTensors parameters;
  for (const Parameter* parameter : loaded.model->parameters())
    parameters.emplace_back(parameter->name(), parameter->rest().detach());
  write_huggingface(target, loaded.model->config(), parameters, loaded.tokenizer);
  fmt::print("{} -> {}: config.json, model.safetensors, tokenizer.json, tokenizer_config.json\n", loaded.origin,
             target.string());
  return 0;
}

int import_model(const ImportArguments& arguments) {
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const HuggingFaceModel model = read_huggingface(arguments.source);
  Recipe named;
  named.name = fs::absolute(arguments.source).lexically_normal().filename().string();
  if (named.name.empty())
    named.name = fs::absolute(arguments.source).lexically_normal().parent_path().filename().string();
  named.checkpoint.dir = arguments.out;
  const fs::path run = import_run(model, choose_run_folder(named, false), mesh_of_one());
  fmt::print("{} -> {}\nuse it:    caravan generate {}\ntrain it:  caravan train {} --resume --set data.text=FILE\n",
             arguments.source, run.string(), run.string(), (run / "recipe.toml").string());
  return 0;
}

}  // namespace caravan::app
