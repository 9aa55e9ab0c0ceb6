#include "caravan/module/plan/dim_index.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

int64_t num_elements(const std::vector<DimIndex::Run>& runs) {
  int64_t count = 0;
  for (const DimIndex::Run& run : runs) count += run.count;
  return count;
}

/// The same elements as few runs: equal indices are equal vectors.
std::vector<DimIndex::Run> joined(const std::vector<DimIndex::Run>& runs) {
  std::vector<DimIndex::Run> result;
  for (const DimIndex::Run& run : runs) {
    if (run.count == 0) continue;
    if (!result.empty() && result.back().first + result.back().count == run.first) {
      result.back().count += run.count;
    } else {
      result.push_back(run);
    }
  }
  return result;
}

}  // namespace

DimIndex::DimIndex(int64_t first, int64_t count, int64_t global) : DimIndex({{first, count}}, global) {}

DimIndex::DimIndex(std::vector<Run> runs, int64_t global) : runs_(joined(runs)), global_(global) {
  if (global < 0) {
    throw ShapeError({"index", "", fmt::format("a dim of {} elements", global), "", "give the size of the whole dim"});
  }
  for (const Run& run : runs) {
    if (run.first >= 0 && run.count >= 0 && run.count <= global - run.first) continue;
    throw ShapeError({"index", "",
                      fmt::format("{} elements from {} on are outside of a dim of {}", run.count, run.first, global),
                      "", "give indices into the whole dim"});
  }
}

DimIndex DimIndex::of(const at::Tensor& indices, int64_t global) {
  const at::Tensor flat = indices.contiguous();
  const int64_t* index = flat.const_data_ptr<int64_t>();
  std::vector<Run> runs;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (!runs.empty() && runs.back().first + runs.back().count == index[i]) {
      ++runs.back().count;
    } else {
      runs.push_back({index[i], 1});
    }
  }
  return {std::move(runs), global};
}

DimIndex DimIndex::of(const std::vector<int64_t>& global_shape, int dim, const Layout& layout, const Mesh& mesh) {
  const auto at = static_cast<size_t>(dim);
  std::vector<Run> runs;
  const auto rows = local_rows(global_shape, layout, mesh);
  for (const RowRun& run : rows.at(at)) runs.push_back({run.begin, run.rows});
  return {std::move(runs), global_shape.at(at)};
}

int64_t DimIndex::global(int64_t local) const {
  if (is_whole()) return local;
  const int64_t count = num_elements(runs_);
  if (count == local) return global_;
  throw ShapeError({"index", "", fmt::format("{} elements of {}, but the tensor has {}", count, global_, local), "",
                    "set the context's index where a technique splits or gathers the dim"});
}

std::vector<DimIndex::Run> DimIndex::runs(int64_t local) const {
  global(local);  // checks
  if (!is_whole()) return runs_;
  return local == 0 ? std::vector<Run>{} : std::vector<Run>{{0, local}};
}

DimIndex DimIndex::slice(int64_t begin, int64_t count, int64_t local) const {
  if (begin < 0 || count < 0 || count > local - begin) {
    throw ShapeError({"index", "", fmt::format("elements {} to {} of {}", begin, begin + count, local), "",
                      "take a piece of what is there"});
  }
  std::vector<Run> piece;
  int64_t passed = 0;  // elements of the previous runs
  for (const Run& run : runs(local)) {
    const int64_t from = std::max(begin - passed, int64_t{0});
    const int64_t to = std::min(begin + count - passed, run.count);
    if (from < to) piece.push_back({run.first + from, to - from});
    passed += run.count;
  }
  return {std::move(piece), global(local)};
}

DimIndex DimIndex::slices(std::span<const RowRun> pieces, int64_t local) const {
  std::vector<Run> all;
  for (const RowRun& piece : pieces) {
    const DimIndex part = slice(piece.begin, piece.rows, local);
    all.insert(all.end(), part.runs_.begin(), part.runs_.end());
  }
  return {std::move(all), global(local)};
}

at::Tensor DimIndex::indices(int64_t local) const {
  at::Tensor indices = at::empty({local}, at::kLong);
  auto* next = indices.mutable_data_ptr<int64_t>();
  for (const Run& run : runs(local)) {
    std::iota(next, next + run.count, run.first);
    next += run.count;
  }
  return indices;
}

at::Tensor counted_up(int64_t first, int64_t count, at::Device device) {
  at::Tensor numbers = at::empty({count}, at::TensorOptions(at::kLong).device(device));
  return at::arange_out(numbers, first, first + count, 1);
}

}  // namespace caravan
