#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/registry/value.h"

namespace caravan {

/// The layout that `train --auto` chose for a run. The run folder keeps it as plan.json, and a resume goes on with it.
struct PlanRecord {
  int num_ranks = 1;
  std::string layout{};                                     ///< in words: layout_text
  std::vector<std::pair<std::string, RecipeValue>> keys{};  ///< layout_keys
  double step_seconds = 0;                                  ///< predicted
  int64_t memory_bytes = 0;                                 ///< predicted peak of the fullest rank
  std::vector<std::string> reasons{};                       ///< see advice_of
  std::string hardware{};                                   ///< what it was planned for: Hardware::source

  std::string to_json() const;
  /// Throws DataError naming `source` for a text that is not of to_json().
  static PlanRecord parse(std::string_view json, const std::string& source);
  bool operator==(const PlanRecord&) const = default;
};

/// The record of a run folder; nothing if it has none. Throws DataError for a damaged one.
std::optional<PlanRecord> read_plan(const std::filesystem::path& run);
/// Throws ResourceError.
void write_plan(const std::filesystem::path& run, const PlanRecord& record);

/// How far a run is from what was predicted for it.
struct PlanComparison {
  static constexpr int64_t kFewestSteps = 3;

  double predicted_ms = 0;
  double measured_ms = 0;  ///< median of num_steps steps; the first step of a process is left out: it prepares others
  int64_t num_steps = 0;
  int64_t predicted_bytes = 0;
  int64_t measured_bytes = 0;  ///< peak of the fullest rank

  /// `step_ms`: of all steps of this process, in order.
  PlanComparison(const PlanRecord& record, std::vector<double> step_ms, int64_t peak_bytes);
  bool has_enough_steps() const noexcept { return num_steps >= kFewestSteps; }
  /// "predicted 212 ms a step, measured 220 ms (median of 40 steps): 1.04; memory 1.2 GiB predicted, 1.2 GiB measured"
  std::string to_string() const;
  /// The line of train.log after `step`.
  std::string to_json(int64_t step) const;
};

}  // namespace caravan
