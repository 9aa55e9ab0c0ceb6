#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/mesh/placement.h"

namespace caravan {

/// Checks that an axis of `n` coordinates named `axis` ("" if unnamed) can split `rows` rows of shard.dim(). Texts are
/// built only if they do not fit.
std::optional<Misfit> misfit(const Placement& shard, int64_t rows, int n, std::string_view axis);

/// Rows of each coordinate, those of all blocks. misfit() must have returned nothing.
std::vector<int64_t> rows_of(const Placement& shard, int64_t rows, int n);

/// The runs of rows that coordinate `coord` holds, in order, where the coordinates hold `rows` in total and their
/// shard has `blocks`. Adjacent runs are one; a coordinate without rows has one run without rows.
std::vector<RowRun> runs_of(std::span<const int64_t> rows, int blocks, int coord);

int64_t num_rows(std::span<const RowRun> runs);

/// The rows at places [begin, begin + rows) of the concatenation of `runs`, added to `to`. Adjacent runs are joined.
void append_rows(std::vector<RowRun>& to, std::span<const RowRun> runs, int64_t begin, int64_t rows);

/// `rows` split among n ranks in parts that differ by at most one; the first parts are the larger ones.
std::vector<int64_t> parts_of(int64_t rows, int64_t n);

/// A shape as text: "[4096, 1000]".
std::string shape_text(const int64_t* sizes, size_t count);

}  // namespace caravan
