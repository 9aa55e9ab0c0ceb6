#include "caravan/mesh/fit.h"

#include <algorithm>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

Misfit not_divisible(const Placement& shard, int64_t rows, int n, const std::string& axis) {
  const std::string by = axis.empty() ? fmt::format("{}", n) : fmt::format("axis {} ({})", axis, n);
  const int64_t block = rows / shard.blocks();
  const std::string where = shard.blocks() == 1 ? fmt::format("dim {} has {} elements", shard.dim(), rows)
                                                : fmt::format("each of the {} blocks of dim {} has {} elements",
                                                              shard.blocks(), shard.dim(), block);
  return {"", fmt::format("{}, not divisible by {}", where, by),
          fmt::format("pad the dim to {}, or choose {} from {}", (block / n + 1) * n * shard.blocks(),
                      axis.empty() ? "the degree" : axis, divisors_near(block, n))};
}

Misfit not_in_blocks(const Placement& shard, int64_t rows) {
  return {"",
          fmt::format("dim {} has {} elements, not divisible by the {} blocks of {}", shard.dim(), rows, shard.blocks(),
                      shard.to_string()),
          fmt::format("choose blocks from {}", divisors_near(rows, shard.blocks()))};
}

Misfit wrong_sum(const Placement& shard, int64_t rows, int64_t sum) {
  return {"", fmt::format("dim {} has {} elements, {} places {}", shard.dim(), rows, shard.to_string(), sum),
          shard.blocks() == 1 ? fmt::format("give sizes that add up to {}", rows)
                              : fmt::format("give sizes of one block, which add up to {}", rows / shard.blocks())};
}

void append(std::vector<RowRun>& runs, const RowRun& run) {
  if (!runs.empty() && (run.rows == 0 || runs.back().begin + runs.back().rows == run.begin)) {
    runs.back().rows += run.rows;
  } else if (!runs.empty() && runs.back().rows == 0) {
    runs.back() = run;
  } else {
    runs.push_back(run);
  }
}

}  // namespace

std::optional<Misfit> misfit(const Placement& shard, int64_t rows, int n, std::string_view axis) {
  const std::string name(axis);
  if (rows % shard.blocks() != 0) return not_in_blocks(shard, rows);
  if (shard.is_even()) {
    if (rows / shard.blocks() % n == 0) return std::nullopt;
    return not_divisible(shard, rows, n, name);
  }
  const std::string whose = name.empty() ? "the axis" : "axis " + name;
  if (shard.owner() >= n) {
    return Misfit{
        "", fmt::format("{} names an owner, but the coordinates of {} are 0 to {}", shard.to_string(), whose, n - 1),
        fmt::format("choose an owner from 0 to {}", n - 1)};
  }
  if (shard.owner() >= 0) {
    if (shard.owner_rows() < 0 || shard.owner_rows() == rows) return std::nullopt;
    return wrong_sum(shard, rows, shard.owner_rows());
  }
  if (static_cast<int>(shard.sizes().size()) != n) {
    return Misfit{
        "", fmt::format("{} has {} sizes, {} has {} coordinates", shard.to_string(), shard.sizes().size(), whose, n),
        "give one size for each coordinate"};
  }
  const int64_t sum = shard.blocks() * std::accumulate(shard.sizes().begin(), shard.sizes().end(), int64_t{0});
  if (sum == rows) return std::nullopt;
  return wrong_sum(shard, rows, sum);
}

std::vector<int64_t> rows_of(const Placement& shard, int64_t rows, int n) {
  if (!shard.sizes().empty()) {
    std::vector<int64_t> parts = shard.sizes();
    for (int64_t& part : parts) part *= shard.blocks();
    return parts;
  }
  if (shard.owner() < 0) return std::vector<int64_t>(n, rows / n);
  std::vector<int64_t> parts(n, 0);
  parts[shard.owner()] = rows;
  return parts;
}

std::vector<RowRun> runs_of(std::span<const int64_t> rows, int blocks, int coord) {
  const auto before = rows.first(static_cast<size_t>(coord));
  const int64_t begin = std::accumulate(before.begin(), before.end(), int64_t{0}) / blocks;
  const int64_t block = std::accumulate(rows.begin(), rows.end(), int64_t{0}) / blocks;
  std::vector<RowRun> runs;
  for (int i = 0; i < blocks; ++i) append(runs, {i * block + begin, rows[static_cast<size_t>(coord)] / blocks});
  return runs;
}

int64_t num_rows(std::span<const RowRun> runs) {
  int64_t rows = 0;
  for (const RowRun& run : runs) rows += run.rows;
  return rows;
}

void append_rows(std::vector<RowRun>& to, std::span<const RowRun> runs, int64_t begin, int64_t rows) {
  int64_t place = 0;  // of the run
  for (const RowRun& run : runs) {
    const int64_t first = std::clamp<int64_t>(begin - place, 0, run.rows);
    const int64_t last = std::clamp<int64_t>(begin + rows - place, 0, run.rows);
    if (first < last) append(to, {run.begin + first, last - first});
    place += run.rows;
  }
}

std::vector<int64_t> parts_of(int64_t rows, int64_t n) {
  std::vector<int64_t> parts(static_cast<size_t>(n), rows / n);
  for (int64_t i = 0; i < rows % n; ++i) ++parts[static_cast<size_t>(i)];
  return parts;
}

std::string shape_text(const int64_t* sizes, size_t count) {
  return "[" + join(std::span<const int64_t>(sizes, count)) + "]";
}

}  // namespace caravan
