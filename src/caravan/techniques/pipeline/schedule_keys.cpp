#include "caravan/techniques/pipeline/schedule_keys.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {
namespace {

ValueKind cut_of_stages() {
  return {[](const RecipeValue& given, RecipeValue& taken) -> std::string {
    taken = given;
    if (const auto* layers = std::get_if<std::vector<int64_t>>(&given)) return layers->empty() ? "names no stage" : "";
    const auto* name = std::get_if<std::string>(&given);
    const std::vector<std::string>& all = pipeline_cuts();
    if (name == nullptr) return is_not(given, "a string or a list of whole numbers");
    if (std::ranges::find(all, *name) != all.end()) return "";
    return fmt::format("'{}' is not one of {}, nor a list such as [3, 4]; the nearest is '{}'", *name, join(all),
                       nearest(*name, all));
  }};
}

}  // namespace

std::vector<SettingKey> schedule_keys() {
  return {{{"micro_batches", OnResume::free},
           "micro-batches of a step; \"auto\": by train.micro_batch, or enough to fill it",
           int64_t{0},
           whole_number_or({1, 1 << 20}, "auto", 0)},
          {{"stages_per_rank", OnResume::free},
           "stages on each rank; \"auto\": the least of the schedule",
           int64_t{0},
           whole_number_or({1, 1 << 10}, "auto", 0)},
          {{"cut", OnResume::free},
           "layers of the stages: \"flops\" or \"measured\": equal cost; \"layers\": equal numbers; "
           "or a list of numbers",
           pipeline_cuts().front(),
           cut_of_stages()}};
}

}  // namespace caravan
