#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/model_source.h"
#include "apps/caravan/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/checkpoint/huggingface.h"
#include "caravan/checkpoint/load_model.h"
#include "caravan/checkpoint/manifest.h"
#include "caravan/comm/world.h"
#include "caravan/train/import.h"
#include "caravan/train/run_folder.h"

namespace caravan::app {

namespace fs = std::filesystem;

Mesh mesh_of_one() { return Mesh::create(make_world("auto", {}, open_store({})), {{"dp", 1}}); }

fs::path source_or_newest(const std::string& source, const char* command) {
  if (!source.empty()) return source;
  fs::path newest = newest_run();
  if (newest.empty()) {
    throw UsageError(
        {command, "source", "no run in runs/ has a checkpoint", "", "train a model first, or name a folder"});
  }
  return newest;
}

int export_model(const ExportArguments& arguments) {
  const fs::path named = arguments.directory;
  std::error_code error;
  const bool is_run =
      arguments.from.empty() && (!list_checkpoints(named).empty() || fs::exists(named / "manifest.json", error));
  if (!is_run && arguments.from.empty() && named.parent_path().filename() == "runs") {
    throw UsageError({"export", named.string(), "is not a run with a checkpoint", "in " + fs::current_path().string(),
                      "name a run; or a folder outside runs/, with --from RUN"});
  }
  const fs::path source = is_run ? named : source_or_newest(arguments.from, "export");
  const fs::path target = is_run ? named / "huggingface" : named;
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one());
  NamedTensors parameters;
  for (const Parameter* parameter : loaded.model->parameters())
    parameters.emplace_back(parameter->name(), parameter->rest().detach());
  write_huggingface(target, loaded.model->config(), parameters, loaded.tokenizer, loaded.text);
  std::vector<std::string> names{"config.json", "model.safetensors", "tokenizer.json"};
  for (const auto& [name, content] : read_text_files(target)) names.push_back(name);
  fmt::print("{} -> {}: {}\n", loaded.origin, target.string(), join(names));
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
  const RunFolder folder = open_run_folder(named, false);
  const fs::path run = import_run(model, folder.path, mesh_of_one());
  fmt::print("{} -> {}\nuse it:    caravan generate {}\ntrain it:  caravan train {} --resume --set data.text=FILE\n",
             arguments.source, run.string(), run.string(), (run / "recipe.toml").string());
  return 0;
}

}  // namespace caravan::app
