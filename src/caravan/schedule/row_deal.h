#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// How the rows of a step are dealt to the coordinates of the data-parallel axis: consecutive rows, the first ones to
/// coordinate 0. A step computes the same rows in the same order under every deal, and the loss is divided by the count
/// of the whole batch, so a deal changes only the order of sums.
struct RowDeal {
  std::vector<int64_t> rows{};  ///< of each coordinate; empty: equal parts, in equal micro-batches
  int64_t unit = 1;             ///< every micro-batch is a multiple of this many rows
  bool is_even() const noexcept { return rows.empty(); }
  bool operator==(const RowDeal&) const noexcept = default;
};

/// What is dealt. Every coordinate has the same number of micro-batches, so that its collectives match those of the
/// others.
struct RowsToDeal {
  int64_t rows = 0;           ///< of a step, over all coordinates
  int64_t coordinates = 1;    ///< of the data-parallel axis
  int64_t micro_batches = 1;  ///< of each coordinate
  int64_t unit = 1;           ///< see RowDeal
  int64_t most = 0;           ///< rows of a micro-batch at most; 0: no limit
};

/// The rows of each coordinate for these speeds, such as rows per second: no other deal ends earlier. Equal speeds give
/// equal parts if the rows divide. No micro-batch is empty. Throws UsageError for a speed that is not above 0, and if
/// there are too few or too many rows.
std::vector<int64_t> deal_rows(const RowsToDeal& what, const std::vector<double>& speeds);

/// When the last coordinate has computed its rows, in the unit of time of the speeds.
double end_of_deal(const std::vector<int64_t>& rows, const std::vector<double>& speeds);

/// What is wrong with a deal of these rows: "3 rows in a step, but there are 4"; "" if it is possible.
std::string why_not(const RowsToDeal& what, const std::vector<int64_t>& rows);

/// The rows of the largest micro-batch of a deal.
int64_t largest_micro_batch(const RowsToDeal& what, const std::vector<int64_t>& rows);

struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const RowRange&) const noexcept = default;
};
/// Micro-batch `index` of the `count` that a coordinate cuts its `rows` into: their sizes differ by at most one unit.
RowRange rows_of_micro_batch(int64_t rows, int64_t count, int64_t index, int64_t unit = 1);

}  // namespace caravan
