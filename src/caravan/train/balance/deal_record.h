#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// The deals of a run: deals.jsonl in its folder.
inline constexpr const char* kDealsFile = "deals.jsonl";

/// A line of it: the rows of each data-parallel rank in the steps after `step`, up to the next line.
struct RecordedDeal {
  int64_t step = 0;             ///< steps done before, as the log counts them
  int64_t micro_batches = 1;    ///< of each rank in a step
  std::vector<int64_t> rows{};  ///< of each data-parallel rank
  /// For how long each of them computed in a step before, which led to this deal; empty: not measured.
  std::vector<double> busy_ms{};
  std::string to_json() const;
  bool operator==(const RecordedDeal&) const noexcept = default;
};

/// The lines of a record, in the order of their steps. A last line cut by a crash is left out. Throws DataError naming
/// `source` and the line for one that is no deal.
std::vector<RecordedDeal> parse_deals(std::string_view text, const std::string& source);

/// The deal of the step after `step` steps; null if the record begins later.
const RecordedDeal* deal_after(const std::vector<RecordedDeal>& deals, int64_t step);

}  // namespace caravan
