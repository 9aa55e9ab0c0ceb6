#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/model_source.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/comm/world.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/train/folder/run_folder.h"
#include "caravan/train/model/import.h"

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

namespace {

/// The folder of exports in a run or checkpoint folder.
const char* const kExportFolder = "huggingface";
const char* const kAdapterFolder = "adapter";

bool is_run_or_checkpoint(const fs::path& folder) {
  std::error_code error;
  return !list_checkpoints(folder).empty() || fs::exists(folder / "manifest.json", error);
}

/// "config.json, model.safetensors and 2 more": the contents of `folder`; "" if it is empty or not a folder.
std::string some_contents(const fs::path& folder) {
  constexpr size_t kMostNames = 4;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  if (names.size() <= kMostNames) return join(names);
  return fmt::format("{} and {} more", join(std::span(names).first(kMostNames)), names.size() - kMostNames);
}

/// Refuses a folder with contents, unless an earlier export into a run created it.
void refuse_to_overwrite(const fs::path& target) {
  const fs::path folder = fs::absolute(target / "").lexically_normal().parent_path();
  const bool is_own = folder.filename() == kExportFolder || folder.filename() == kAdapterFolder;
  if (is_own && is_run_or_checkpoint(folder.parent_path())) return;
  const std::string contents = some_contents(target);
  if (contents.empty()) return;
  std::error_code error;
  const bool is_hugging_face = fs::exists(target / "config.json", error);
  throw UsageError(
      {"export", target.string(),
       fmt::format("{}: it holds {}", is_hugging_face ? "is a Hugging Face folder already" : "is not an empty folder",
                   contents),
       "", "name a new folder to write to: caravan export RUN --out NEW_FOLDER; or remove this one"});
}

/// The destination of the model of `source`. Throws UsageError if `source` has no model.
fs::path export_target(const ExportArguments& arguments, const fs::path& source) {
  const bool is_run = is_run_or_checkpoint(source);
  std::error_code error;
  const bool is_hugging_face = !is_run && fs::exists(source / "config.json", error);
  if (!is_run && !is_hugging_face) {
    throw UsageError(
        {"export", source.string(),
         fs::exists(source, error) ? "is not a run with a checkpoint, a checkpoint or a Hugging Face folder"
                                   : "is not there",
         "in " + fs::current_path().string(), "name the run to export; the folder to write to is --out FOLDER"});
  }
  if (!arguments.out.empty()) return arguments.out;
  if (is_run) return source / (arguments.adapter ? kAdapterFolder : kExportFolder);
  throw UsageError({"export", source.string(), "is a Hugging Face folder, not a run: there is no place for its export",
                    "", "name a new folder to write to: --out FOLDER"});
}

/// With the end of a turn among the end tokens. A template that cannot be rendered here is exported as it is.
TextSettings text_to_export(const LoadedModel& model, const fs::path& source) {
  try {
    return with_ends_of_turns(model.text, model.tokenizer, source);
  } catch (const DataError& error) {
    fmt::print(stderr, "caravan: generation_config.json does not name the end of a turn: {}\n", error.what());
    return model.text;
  }
}

}  // namespace

int export_model(const ExportArguments& arguments) {
  const fs::path source = source_or_newest(arguments.source, "export");
  const fs::path target = export_target(arguments, source);
  refuse_to_overwrite(target);
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one(), weights_of(arguments.average));
  NamedTensors parameters;
  for (const Parameter* parameter : loaded.model->parameters())
    parameters.emplace_back(parameter->name(), parameter->sharded().detach());
  const ModelConfig& config = loaded.model->config();
  if (arguments.adapter) {
    if (!config.lora.is_used()) {
      throw UsageError({"export", "--adapter", loaded.origin + " has no adapters", "", "leave --adapter out"});
    }
    write_peft(target, config, parameters, arguments.base);
    fmt::print("{} -> {}: {}, {}\n", loaded.origin, target.string(), kPeftConfig, kPeftWeights);
    return 0;
  }
  write_huggingface(target, without_adapters(config), with_adapters_merged(config, parameters), loaded.tokenizer,
                    text_to_export(loaded, source));
  std::vector<std::string> names{"config.json", "model.safetensors", "tokenizer.json"};
  for (const auto& [name, content] : read_text_files(target)) names.push_back(name);
  fmt::print("{} -> {}: {}\n", loaded.origin, target.string(), join(names));
  return 0;
}

namespace {

/// If the adapters come with a head of classes, the merged model has that head.
void merge_adapter(HuggingFaceModel& model, const fs::path& folder) {
  ModelConfig adapted = model.config;
  std::map<std::string, at::Tensor> found(model.parameters.begin(), model.parameters.end());
  if (const int64_t classes = peft_classes(folder, model.config); classes > 0 && adapted.classes == 0) {
    adapted.classes = classes;
    std::erase_if(found, [&](const auto& tensor) { return adapted.is_of_head(tensor.first); });
  }
  adapted.lora = read_peft_config(folder, adapted).lora;
  for (auto& [name, tensor] : read_peft(folder, adapted)) found[name] = tensor;
  NamedTensors all;
  const Model whole(adapted);
  for (const Parameter* parameter : whole.parameters()) {
    const auto tensor = found.find(parameter->name());
    if (tensor == found.end()) {
      throw DataError({"import", folder.string(), "has no " + parameter->name() + ", and neither has the model", "",
                       "train with train.init_from and lora.adapter, which makes a new one"});
    }
    all.push_back(*tensor);
  }
  model.parameters = with_adapters_merged(adapted, all);
  model.config = without_adapters(adapted);
}

/// The command that trains an imported model on a file. With the model's own context a step may need more memory than
/// there is.
std::string training_of(const fs::path& run, const ModelConfig& config, bool is_chat) {
  constexpr int64_t kShort = 512;
  std::string command = fmt::format("caravan train --set train.init_from={} data.text=FILE model.context={}",
                                    run.string(), std::min(config.context, kShort));
  if (config.has_encoder()) command += fmt::format(" model.source_context={}", std::min(config.source_context, kShort));
  if (const std::string task(usual_task(config)); task != "next") command += " data.task=" + task;
  if (is_chat) command += " data.format=chat data.pack=documents";
  return command + " optimizer.lr=1e-5";  // trained weights need a small one
}

}  // namespace

int import_model(const ImportArguments& arguments) {
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  HuggingFaceModel model = read_huggingface(arguments.source, /*may_lack_head=*/!arguments.adapter.empty());
  if (!arguments.adapter.empty()) merge_adapter(model, arguments.adapter);
  Recipe named;
  named.name = fs::absolute(arguments.source).lexically_normal().filename().string();
  if (named.name.empty())
    named.name = fs::absolute(arguments.source).lexically_normal().parent_path().filename().string();
  named.checkpoint.dir = arguments.out;
  const RunFolder folder = open_run_folder(named, false);
  const fs::path run = import_run(model, folder.path, mesh_of_one());
  const ModelConfig& config = model.config;
  const bool is_chat = has_chat_template(model.text.files) && config.continues_texts();
  const char* use = config.classes > 0 ? "classify" : config.continues_texts() ? "generate" : "fill-mask";
  fmt::print("{} -> {}\nuse it:    caravan {} {}{}\ntrain it:  {}\n", arguments.source, run.string(), use, run.string(),
             is_chat ? " --chat" : "", training_of(run, config, is_chat));
  return 0;
}

}  // namespace caravan::app
