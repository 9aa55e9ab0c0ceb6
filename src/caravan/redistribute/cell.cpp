#include "caravan/redistribute/cell.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

ShapeError shape_error(const CallSite& site, const Misfit& wrong) {
  return ShapeError({site.op, site.subject(), wrong.fact, site.where(), wrong.action});
}

/// Rows of the whole dim, which the axis splits as `from` and of which this coordinate holds `local`.
int64_t whole_rows(const Placement& from, int64_t local, const CallSite& site) {
  if (from.is_even()) return local * site.axis.size();
  if (from.owner() >= 0 && from.owner_rows() < 0) {
    // The owner knows the rows, but all ranks must fail together.
    throw shape_error(site, {"",
                             fmt::format("axis {} leaves {}, but only coordinate {} knows how many rows there are",
                                         site.axis.name(), from.to_string(), from.owner()),
                             "give the number in the layout: Shard{.dim, .owner, .rows}"});
  }
  return from.owner() >= 0 ? from.owner_rows() : sum_of(from.sizes()) * from.blocks();
}

std::vector<int64_t> checked_rows(const Placement& shard, int64_t rows, const CallSite& site) {
  if (const auto wrong = misfit(shard, rows, site.axis.size(), site.axis.name())) throw shape_error(site, *wrong);
  return rows_of(shard, rows, site.axis.size());
}

/// The rows that two coordinates hold in common, as runs of the piece of the first and of that of the second.
std::pair<std::vector<RowRun>, std::vector<RowRun>> common_rows(std::span<const RowRun> a, std::span<const RowRun> b) {
  std::pair<std::vector<RowRun>, std::vector<RowRun>> common;
  int64_t a_place = 0;
  int64_t b_place = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t begin = std::max(a[i].begin, b[j].begin);
    const int64_t a_end = a[i].begin + a[i].rows;
    const int64_t b_end = b[j].begin + b[j].rows;
    if (const int64_t rows = std::min(a_end, b_end) - begin; rows > 0) {
      common.first.push_back({a_place + begin - a[i].begin, rows});
      common.second.push_back({b_place + begin - b[j].begin, rows});
    }
    if (a_end <= b_end) {
      a_place += a[i++].rows;
    } else {
      b_place += b[j++].rows;
    }
  }
  return common;
}

}  // namespace

std::string CallSite::subject() const {
  const std::string shape_of = shape_text(shape.data(), shape.size());
  return call != nullptr && !call->what.empty() ? std::string(call->what) + " " + shape_of : "tensor " + shape_of;
}

std::string CallSite::where() const {
  std::string text = axis.where();
  if (layout != nullptr) text += ", layout " + layout->to_string();
  if (call != nullptr) {
    const std::string_view path = call->where.file_name();
    text += fmt::format(", called at {}:{}", path.substr(path.rfind('/') + 1), call->where.line());
  }
  return text;
}

void check_dim(const Placement& placement, size_t num_dims, const CallSite& site) {
  if (!placement.is_shard() || placement.dim() < static_cast<int>(num_dims)) return;
  throw LayoutError(
      {site.op, site.subject(),
       fmt::format("{} on axis {}, but there are {} dims", placement.to_string(), site.axis.name(), num_dims),
       site.where(),
       num_dims == 0 ? "a tensor without dims cannot be sharded: use R, I or P"
                     : fmt::format("choose a dim from 0 to {}", num_dims - 1)});
}

Cell make_cell(const Placement& from, const Placement& to, const CallSite& site) {
  Cell cell{from, to, {}, {}};
  if (from.is_shard()) {
    const int64_t local = site.shape[from.dim()];
    cell.from_rows = checked_rows(from, whole_rows(from, local, site), site);
    const int64_t expected = cell.from_rows[site.axis.coord()];
    if (local != expected) {
      throw shape_error(
          site, {"",
                 fmt::format("dim {} has {} elements, but {} gives coordinate {} of axis {} {}", from.dim(), local,
                             from.to_string(), site.axis.coord(), site.axis.name(), expected),
                 "give the layout that the tensor has"});
    }
  }
  if (to.is_shard()) {
    const bool same_dim = from.is_shard(to.dim());
    cell.to_rows = checked_rows(to, same_dim ? sum_of(cell.from_rows) : site.shape[to.dim()], site);
  }
  return cell;
}

std::vector<int64_t> shape_after(const Cell& cell, std::span<const int64_t> shape, int coord) {
  std::vector<int64_t> after(shape.begin(), shape.end());
  if (cell.from.is_shard()) after[cell.from.dim()] = sum_of(cell.from_rows);
  if (cell.to.is_shard()) after[cell.to.dim()] = cell.to_rows[coord];
  return after;
}

Exchange exchange_of(const Cell& cell, int coord) {
  if (!cell.is_recut()) return {cell.to_rows, cell.from_rows};
  const auto before = [&](int k) { return runs_of(cell.from_rows, cell.from.blocks(), k); };
  const auto after = [&](int k) { return runs_of(cell.to_rows, cell.to.blocks(), k); };
  const std::vector<RowRun> mine_before = before(coord);
  const std::vector<RowRun> mine_after = after(coord);
  Exchange rows;
  for (int k = 0; k < static_cast<int>(cell.to_rows.size()); ++k) {
    rows.sent_runs.push_back(common_rows(mine_before, after(k)).first);
    rows.send.push_back(num_rows(rows.sent_runs.back()));
    rows.received_runs.push_back(common_rows(before(k), mine_after).second);
    rows.receive.push_back(num_rows(rows.received_runs.back()));
  }
  return rows;
}

int64_t sum_of(std::span<const int64_t> rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

}  // namespace caravan
