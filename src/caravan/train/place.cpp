#include "caravan/train/place.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/recipe/init_from.h"
#include "caravan/train/dataset/dataset.h"
#include "caravan/train/folder/run_folder.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The checkpoint of `run` that `options` name, by its name or its path; or the newest.
fs::path chosen_checkpoint(const TrainOptions& options, const fs::path& run) {
  const auto all = list_checkpoints(run);
  if (options.resume_from.empty()) return all.back();
  const fs::path given = fs::path(options.resume_from + "/").lexically_normal().parent_path();
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::path& checkpoint : all) {
    names.push_back(checkpoint.filename().string());
    const bool is_meant = given.has_parent_path() ? fs::equivalent(given, checkpoint, error) : given == names.back();
    if (is_meant) return checkpoint;
  }
  throw UsageError({"train", "--resume-from", fmt::format("{} is not a checkpoint of this run", options.resume_from),
                    run.string(), "choose from " + join(names)});
}

/// Called on rank 0.
Place open_place(const TrainOptions& options) {
  Place place;
  RunFolder opened = open_run_folder(options.recipe, options.resumes());
  place.lock = std::move(opened.lock);
  place.notes = std::move(opened.notes);
  place.folder = fs::absolute(opened.path).lexically_normal();
  if (!options.resumes()) return place;
  place.checkpoint = chosen_checkpoint(options, place.folder);
  try {
    const CheckpointInfo info = Manifest::read(place.checkpoint).info;
    place.numerics = info.numerics;
    const Recipe before = parse_recipe(info.recipe, place.checkpoint.string(), {}, RecipeWriter::run);
    const int64_t micro_batch = before.train.micro_batch;
    if (micro_batch != kAutoMicroBatch) place.micro_batch = micro_batch;  // imported weights have no number
    if (info.optimizer_steps > 0) place.fill = before.data.fills_best() ? "best_fit" : "stream";
    if (before.model.lora.is_used()) place.experts = before.model.lora.experts ? "true" : "false";
  } catch (const DataError& error) {
    refuse_damaged(place.checkpoint, error);
  }
  return place;
}

}  // namespace

Place share_place(const TrainOptions& options, Communicator& world) {
  Place place;
  on_rank_0(
      world, [&] { place = open_place(options); }, "run folder");
  place.folder = broadcast_text(world, place.folder.string(), 0, "run folder");
  place.checkpoint = broadcast_text(world, place.checkpoint.string(), 0, "checkpoint");
  place.fill = broadcast_text(world, place.fill, 0, "data.fill");
  place.experts = broadcast_text(world, place.experts, 0, "lora.experts");
  return place;
}

void keep_defaults(Recipe& recipe, const Place& place) {
  const bool is_default = !recipe.data.streaming && !recipe.locations.contains("data.fill");
  if (is_default && !place.fill.empty()) recipe.data.fill = place.fill;
  const bool is_given = recipe.locations.contains("lora.experts");
  if (!is_given && !place.experts.empty()) recipe.model.lora.experts = place.experts == "true";
}

namespace {

/// The run does not keep train.init_from, and a resumed run compares with the same model.
void keep_reference(Recipe& recipe) {
  std::string& reference = recipe.data.task.preference.reference;
  reference = reference_folder(recipe);
  if (!reference.empty() || recipe.model.lora.is_used()) return;
  recipe.refuse("preference.reference", "is needed where all weights are trained, and no model to start from",
                "set train.init_from, whose weights are then the reference too; or preference.reference");
}

}  // namespace

Recipe recipe_to_keep(const TrainOptions& options) {
  Recipe recipe = options.recipe;
  check_run_path(recipe);
  resolve_files(recipe.data, options.folders);
  const auto make_absolute = [](std::string& path) {
    std::error_code error;
    if (fs::exists(path, error)) path = fs::absolute(path).lexically_normal().string();
  };
  if (recipe.data.tokenizer != "bytes") make_absolute(recipe.data.tokenizer);
  make_absolute(recipe.comm.algorithms);
  make_absolute(recipe.train.balance);
  if (recipe.data.task.has_preferences()) keep_reference(recipe);
  recipe.train.init_from.clear();  // the run continues from its own checkpoints
  recipe.train.adapter.clear();
  if (utf8_error(to_toml(recipe)) != kNoUtf8Error) {
    throw UsageError({"train", "recipe", "names a file whose path is not UTF-8", "from " + fs::current_path().string(),
                      "rename the folder, or give the files other paths"});
  }
  return recipe;
}

fs::path shown(const fs::path& path) {
  const fs::path relative = path.lexically_relative(fs::current_path());
  return relative.empty() || *relative.begin() == ".." ? path : relative;
}

}  // namespace caravan
