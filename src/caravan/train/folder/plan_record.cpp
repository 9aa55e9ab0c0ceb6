#include "caravan/train/folder/plan_record.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

using nlohmann::ordered_json;

const char* const kPlanFile = "plan.json";

/// Keys of a layout have no value of another kind than these.
ordered_json json_of(const RecipeValue& value) {
  return std::visit(
      [&](const auto& own) -> ordered_json {
        using Value = std::decay_t<decltype(own)>;
        if constexpr (std::is_same_v<Value, TrainTokenizer> || std::is_same_v<Value, std::vector<DataSource>> ||
                      std::is_same_v<Value, std::vector<StepPoint>> ||
                      std::is_same_v<Value, std::vector<ParameterGroup>>) {
          throw InternalError({"plan", "record", "a key of the layout has the value " + to_toml(value), "", ""});
        } else {
          return own;
        }
      },
      value);
}

RecipeValue value_of(const ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  const bool are_numbers = json.is_array() && !json.empty() && json.front().is_number_integer();
  if (are_numbers) return json.get<std::vector<int64_t>>();
  return json.get<std::vector<std::string>>();
}

std::string ms_text(double ms) { return ms < 10 ? fmt::format("{:.3g} ms", ms) : fmt::format("{:.0f} ms", ms); }

}  // namespace

std::string PlanRecord::to_json() const {
  ordered_json json{{"ranks", num_ranks},
                    {"layout", layout},
                    {"keys", ordered_json::object()},
                    {"predicted_step_ms", 1e3 * step_seconds},
                    {"predicted_memory_bytes", memory_bytes},
                    {"reasons", reasons},
                    {"hardware", hardware}};
  for (const auto& [key, value] : keys) json["keys"][key] = json_of(value);
  return json.dump(2) + "\n";
}

PlanRecord PlanRecord::parse(std::string_view json, const std::string& source) {
  try {
    const auto parsed = ordered_json::parse(json);
    PlanRecord record{.num_ranks = parsed.at("ranks").get<int>(),
                      .layout = parsed.at("layout").get<std::string>(),
                      .step_seconds = parsed.at("predicted_step_ms").get<double>() / 1e3,
                      .memory_bytes = parsed.at("predicted_memory_bytes").get<int64_t>(),
                      .reasons = parsed.at("reasons").get<std::vector<std::string>>(),
                      .hardware = parsed.at("hardware").get<std::string>()};
    for (const auto& [key, value] : parsed.at("keys").items()) record.keys.emplace_back(key, value_of(value));
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw DataError({"train", source, std::string("is not a plan of this program: ") + error.what(), "",
                     "remove it to go on with the layout of the recipe"});
  }
}

std::optional<PlanRecord> read_plan(const std::filesystem::path& run) {
  const std::filesystem::path file = run / kPlanFile;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  if (std::filesystem::is_empty(file, error)) return PlanRecord::parse("", file.string());
  return PlanRecord::parse(MappedFile(file, "train").text(), file.string());
}

void write_plan(const std::filesystem::path& run, const PlanRecord& record) {
  write_file_durably(run / kPlanFile, record.to_json(), "train");
}

PlanComparison::PlanComparison(const PlanRecord& record, std::vector<double> step_ms, int64_t peak_bytes)
    : predicted_ms(1e3 * record.step_seconds), predicted_bytes(record.memory_bytes), measured_bytes(peak_bytes) {
  if (step_ms.size() < 2) return;
  step_ms.erase(step_ms.begin());
  num_steps = static_cast<int64_t>(step_ms.size());
  std::ranges::sort(step_ms);
  const size_t half = step_ms.size() / 2;
  measured_ms = step_ms.size() % 2 == 1 ? step_ms[half] : (step_ms[half - 1] + step_ms[half]) / 2;
}

std::string PlanComparison::to_string() const {
  const std::string memory =
      fmt::format("memory {} predicted, {} measured", format_bytes(predicted_bytes), format_bytes(measured_bytes));
  if (!has_enough_steps()) {
    return fmt::format("predicted {} a step; {} step{} after the first {} too few to compare, {} are enough; {}",
                       ms_text(predicted_ms), num_steps, num_steps == 1 ? "" : "s", num_steps == 1 ? "is" : "are",
                       kFewestSteps, memory);
  }
  return fmt::format("predicted {} a step, measured {} (median of {} steps): {:.2f}; {}", ms_text(predicted_ms),
                     ms_text(measured_ms), num_steps, measured_ms / predicted_ms, memory);
}

std::string PlanComparison::to_json(int64_t step) const {
  ordered_json plan{{"predicted_step_ms", predicted_ms}};
  if (has_enough_steps()) plan["measured_step_ms"] = measured_ms;
  plan["steps"] = num_steps;
  plan["predicted_memory_bytes"] = predicted_bytes;
  plan["measured_memory_bytes"] = measured_bytes;
  return ordered_json{{"step", step}, {"plan", std::move(plan)}}.dump();
}

}  // namespace caravan
