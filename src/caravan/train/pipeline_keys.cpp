#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/parallel/pipeline_schedule.h"
#include "caravan/train/key_kinds.h"

namespace caravan {
namespace {

RecipeKey with_pp(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.pipeline.is_used(); },
      "is used with mesh.pp above 1 only");
}

/// A word that looks like a path is one: load_recipe reads the file.
RecipeKey pipeline_schedule() {
  const Family& family = family_of("pipeline");
  return {{"pipeline.schedule", family.on_resume},
          std::string(family.help) + ": " + join(names_of("pipeline")) + ", or a file with a table of its own",
          [](const Recipe& recipe) -> RecipeValue { return recipe.pipeline.schedule; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* name = std::get_if<std::string>(&value);
            if (name == nullptr) return is_not(value, "a string");
            const std::vector<std::string> all = names_of("pipeline");
            const bool is_path = name->find_first_of("./") != std::string::npos;
            if (!is_path && std::ranges::find(all, *name) == all.end()) {
              return fmt::format("'{}' is not one of {}, nor a file such as \"table.txt\"; the nearest is '{}'", *name,
                                 join(all), nearest(*name, all));
            }
            recipe.pipeline.schedule = *name;
            return "";
          }};
}

RecipeKey pipeline_cut() {
  return {
      {"pipeline.cut", OnResume::free},
      "layers of the stages: \"flops\" or \"measured\", so that they cost the same; \"layers\": as many in each; or "
      "a list of numbers",
      [](const Recipe& recipe) -> RecipeValue {
        if (!recipe.pipeline.layers.empty()) return recipe.pipeline.layers;
        return recipe.pipeline.cut;
      },
      [](Recipe& recipe, const RecipeValue& value) -> std::string {
        if (const auto* layers = std::get_if<std::vector<int64_t>>(&value)) {
          recipe.pipeline.layers = *layers;
          return layers->empty() ? "names no stage" : "";
        }
        const auto* name = std::get_if<std::string>(&value);
        const auto& all = pipeline_cuts();
        if (name == nullptr) return is_not(value, "a string or a list of whole numbers");
        if (std::ranges::find(all, *name) == all.end()) {
          return fmt::format("'{}' is not one of {}, nor a list such as [3, 4]; the nearest is '{}'", *name, join(all),
                             nearest(*name, all));
        }
        recipe.pipeline.cut = *name;
        recipe.pipeline.layers.clear();
        return "";
      }};
}

/// "interleaved 2 or more, zb-v 2, others 1"
std::string stages_of_schedules() {
  std::string text;
  for (const std::string& name : names_of("pipeline")) {
    const PipelineSchedule& schedule = schedule_of({.schedule = name});
    if (schedule.most_stages == 1) continue;
    text += fmt::format("{} {}{}, ", name, schedule.least_stages,
                        schedule.most_stages > schedule.least_stages ? " or more" : "");
  }
  return text + "others 1";
}

/// Of stages that step on their own: "\"pipedream\" or \"pipedream-2bw\""
std::string schedules_that_update() {
  std::vector<std::string> names;
  for (const std::string& name : names_of("pipeline")) {
    if (PipelineChoice{.schedule = name}.is_asynchronous()) names.push_back("\"" + name + "\"");
  }
  return join(names, " or ");
}

}  // namespace

std::vector<RecipeKey> pipeline_keys() {
  return {
      with_pp(pipeline_schedule()),
      with_pp(integer_or(
          {"pipeline.micro_batches", OnResume::free},
          "micro-batches of a step; \"auto\": by train.micro_batch, or enough to fill it",
          [](Recipe & recipe) -> auto& { return recipe.pipeline.micro_batches; }, {1, 1 << 20}, "auto", 0)),
      with_pp(integer_or(
          {"pipeline.stages_per_rank", OnResume::free},
          "stages on each rank: " + stages_of_schedules() + "; \"auto\": the least of the schedule",
          [](Recipe & recipe) -> auto& { return recipe.pipeline.stages_per_rank; }, {1, 1 << 10}, "auto", 0)),
      with_pp(pipeline_cut()),
      only_with(
          integer({"pipeline.drain", OnResume::listed},
                  "steps after which all stages stop for a line of the log, at the latest",
                  [](Recipe & recipe) -> auto& { return recipe.pipeline.drain; }, {1, 1 << 20}),
          [](const Recipe& recipe) { return recipe.pipeline.has_windows(); },
          "is used with pipeline.schedule = " + schedules_that_update() + " only"),
  };
}

}  // namespace caravan
