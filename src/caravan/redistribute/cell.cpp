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
  return from.owner() >= 0 ? from.owner_rows() : sum_of(from.sizes());
}

std::vector<int64_t> checked_rows(const Placement& shard, int64_t rows, const CallSite& site) {
  if (const auto wrong = misfit(shard, rows, site.axis.size(), site.axis.name())) throw shape_error(site, *wrong);
  return rows_of(shard, rows, site.axis.size());
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
  if (cell.from.dim() != cell.to.dim()) return {cell.to_rows, cell.from_rows};
  const auto overlap = [](const std::vector<int64_t>& a, int i, const std::vector<int64_t>& b, int j) {
    const int64_t a_begin = sum_of({a.data(), static_cast<size_t>(i)});
    const int64_t b_begin = sum_of({b.data(), static_cast<size_t>(j)});
    return std::max<int64_t>(0, std::min(a_begin + a[i], b_begin + b[j]) - std::max(a_begin, b_begin));
  };
  Exchange rows;
  for (int k = 0; k < static_cast<int>(cell.to_rows.size()); ++k) {
    rows.send.push_back(overlap(cell.from_rows, coord, cell.to_rows, k));
    rows.receive.push_back(overlap(cell.from_rows, k, cell.to_rows, coord));
  }
  return rows;
}

int64_t sum_of(std::span<const int64_t> rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

}  // namespace caravan
