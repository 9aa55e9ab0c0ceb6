#pragma once

#include <string>
#include <utility>
#include <vector>

#include "caravan/registry/split.h"
#include "caravan/schedule/pipeline_choice.h"
#include "tests/needs.h"

namespace caravan::testing {

using Values = std::vector<std::pair<std::string, RecipeValue>>;

/// A data-parallel technique: technique_of("zero3", {{"share", "off"}}).
inline Setting technique_of(const std::string& name, const Values& values = {}) {
  return setting_of("data_parallel", name, values);
}

inline Setting hook_of(const std::string& name, const Values& values = {}) { return setting_of("hook", name, values); }

/// Layers or sequences split over `degree` ranks. One rank splits nothing, for any entry.
inline Split split_of(std::string_view family, const std::string& kind, int64_t degree, const Values& values) {
  const bool is_nothing = degree == 1 && find_entry(family, kind) == nullptr;
  return {is_nothing ? Setting(family) : setting_of(family, kind, values), degree};
}

/// Sequences split over `degree` ranks.
inline Split context_of(const std::string& kind, int64_t degree, const Values& values = {}) {
  return split_of("context_parallel", kind, degree, values);
}

/// Layers split over `degree` ranks, and experts.
inline Split tensor_of(int64_t degree, const std::string& kind = "1d", const Values& values = {}) {
  return split_of("tensor_parallel", kind, degree, values);
}
inline Split experts_of(int64_t degree) { return split_of("expert_parallel", "experts", degree, {}); }

/// What is recomputed in backward: by name, or modules by patterns.
inline Setting recompute_of(const std::string& name) { return setting_of("recompute", name); }
inline Setting recompute_of(const std::vector<std::string>& modules) {
  return setting_of("recompute", "modules", {{"modules", modules}});
}

/// Stages on `degree` ranks. Numbers of 0 are left to the schedule.
inline PipelineChoice pipeline_of(const std::string& schedule, int64_t degree = 1, int64_t stages_per_rank = 0,
                                  int64_t micro_batches = 0) {
  PipelineChoice choice{.degree = degree, .schedule = setting_of("pipeline", schedule)};
  if (stages_per_rank != 0) choice.schedule.set("stages_per_rank", stages_per_rank);
  if (micro_batches != 0) choice.schedule.set("micro_batches", micro_batches);
  return choice;
}

/// The same setting with other values, also for keys that it does not read.
inline Setting with(Setting setting, const Values& values) {
  for (const auto& [key, value] : values) setting.set(key, value);
  return setting;
}

}  // namespace caravan::testing
