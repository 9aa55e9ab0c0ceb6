#pragma once

#include <string>
#include <utility>
#include <vector>

#include "caravan/report/chart.h"

namespace caravan {

/// Curves of the quantities that a log has, one chart each: loss with that of the validation text, norm, learning
/// rate, speed, waiting, memory, bubbles. `axis` as RunLog::series.
std::vector<Chart> charts_of(const RunLog& log, const std::string& axis = "step");

/// The same for several runs: one chart for each quantity, with a curve for each run that has it. Throws UsageError for
/// a quantity that no run has, naming the nearest.
std::vector<Chart> charts_of(const std::vector<RunLog>& logs, const std::vector<std::string>& quantities,
                             const std::string& axis);

/// What a page says about a run besides its curves.
struct ReportFacts {
  std::vector<std::pair<std::string, std::string>> facts{};  ///< names and values, in order
  std::string recipe{};                                      ///< TOML
  std::string schedule{};                                    ///< SVG of a pipeline; "": none
  std::string timeline{};                                    ///< SVG of a step (step_timeline); "": none
  std::vector<std::pair<std::string, double>> memory{};      ///< bytes of a rank by kind
  std::vector<std::pair<int64_t, std::string>> samples{};    ///< texts, by step
};

/// One HTML file, without scripts or external resources.
std::string report_page(const RunLog& log, const ReportFacts& facts);

}  // namespace caravan
