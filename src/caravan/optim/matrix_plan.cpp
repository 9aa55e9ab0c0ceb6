#include "caravan/optim/matrix_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/optim/newton_schulz.h"

namespace caravan {
namespace {

/// The rows of `dim` that a rank holds, in its order: as local_rows(), for any rank of `ranks`.
std::vector<RowRun> rows_held(const Parameter& parameter, int dim, int rank, const MatrixRanks& ranks) {
  int64_t size = parameter.global_shape()[static_cast<size_t>(dim)];
  std::vector<RowRun> held{{0, size}};
  for (const auto& [name, placement] : parameter.sharded_layout().entries()) {
    if (!placement.is_shard(dim)) continue;
    const MeshAxis& axis = ranks.mesh()[name];
    if (const auto wrong = misfit(placement, size, axis.size(), name)) {
      // Sizes hold at this rank's coordinates of the major axes.
      throw UsageError({"optimizer", parameter.name(),
                        "is needed whole, and other ranks hold other numbers of its rows: " + wrong->fact,
                        ranks.mesh().where(),
                        "use degrees that divide heads and hidden widths, or an optimizer that "
                        "needs no whole matrices"});
    }
    const std::vector<int64_t> rows = rows_of(placement, size, axis.size());
    std::vector<RowRun> taken;
    for (const RowRun& run : runs_of(rows, placement.blocks(), ranks.coord(rank, name))) {
      append_rows(taken, held, run.begin, run.rows);
    }
    held = std::move(taken);
    size = num_rows(held);
  }
  return held;
}

/// Whether some of `ranks` holds a part of a trained parameter, beside the stages of a pipeline.
bool is_cut(const Parameter& parameter, const MatrixRanks& ranks) {
  if (!parameter.requires_grad() || parameter.global_shape().empty()) return false;
  return std::ranges::any_of(parameter.sharded_layout().entries(),
                             [&](const auto& entry) { return entry.second.is_shard() && ranks.spans(entry.first); });
}

/// Those of `runs` from `first` to `end`, counted from `first`.
std::vector<RowRun> rows_between(const std::vector<RowRun>& runs, int64_t first, int64_t end) {
  std::vector<RowRun> inside;
  for (const RowRun& run : runs) {
    const int64_t from = std::max(first, run.begin), to = std::min(end, run.begin + run.rows);
    if (from < to) inside.push_back({from - first, to - from});
  }
  return inside;
}

int64_t rows_before(const std::vector<RowRun>& runs, int64_t row) {
  int64_t before = 0;
  for (const RowRun& run : runs) before += std::clamp<int64_t>(row - run.begin, 0, run.rows);
  return before;
}

/// Whether two ranks that hold an equal copy or other pieces have the same coordinates where all copies are equal.
bool is_beside(int rank, int owner, const Parameter& parameter, const MatrixRanks& ranks) {
  return std::ranges::all_of(parameter.sharded_layout().entries(), [&](const auto& entry) {
    return entry.second.is_shard() || !ranks.mesh().has(entry.first) ||
           ranks.coord(rank, entry.first) == ranks.coord(owner, entry.first);
  });
}

int64_t parts_for(const std::vector<int64_t>& moved, int64_t most) {
  const int64_t largest = *std::ranges::max_element(moved);
  return (largest + most - 1) / most;
}

uint64_t mixed(uint64_t digest, int64_t number) noexcept {
  digest ^= static_cast<uint64_t>(number) + 0x9e3779b97f4a7c15 + (digest << 6) + (digest >> 2);
  return digest * 0xff51afd7ed558ccd;
}

}  // namespace

const MatrixPiece* WholeMatrix::piece_of(int rank) const noexcept {
  const auto found = std::ranges::lower_bound(pieces, rank, {}, &MatrixPiece::rank);
  return found == pieces.end() || found->rank != rank ? nullptr : &*found;
}

bool is_of_matrices(const Parameter& parameter) {
  return parameter.requires_grad() && parameter.global_shape().size() == 2 && parameter.spec().matrices > 0;
}

MatrixPlan::MatrixPlan(const FlatLayout& layout, const MatrixRanks& ranks, WholeUnits units) {
  for (size_t slot = 0; slot < layout.slots().size(); ++slot) {
    const Parameter& parameter = *layout.slots()[slot].parameter;
    const bool is_one = units == WholeUnits::matrices ? is_of_matrices(parameter) : is_cut(parameter, ranks);
    if (is_one) add(slot, parameter, ranks, units);
  }
  assign(ranks, layout, units);
  make_rounds(ranks);
}

void MatrixPlan::add(size_t slot, const Parameter& parameter, const MatrixRanks& ranks, WholeUnits units) {
  if (parameter.tile_of() != nullptr) {
    throw UsageError({"optimizer", parameter.name(), "is a tile of what the optimizer needs whole",
                      ranks.mesh().where(), "use no tiles, or an optimizer that needs no whole matrices"});
  }
  const bool cuts_columns = units == WholeUnits::matrices;
  const int64_t count = cuts_columns ? parameter.spec().matrices : 1, rows = parameter.global_shape()[0] / count;
  const int64_t columns = rows == 0 ? 0 : parameter.num_elements() / (count * rows);
  std::vector<std::vector<RowRun>> rows_of_rank, columns_of_rank;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    rows_of_rank.push_back(rows_held(parameter, 0, rank, ranks));
    columns_of_rank.push_back(cuts_columns ? rows_held(parameter, 1, rank, ranks) : std::vector{RowRun{0, columns}});
  }
  for (int64_t first = 0; first < count * rows; first += rows) {
    WholeMatrix matrix{.slot = slot, .rows = rows, .columns = columns};
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto& held = rows_of_rank[static_cast<size_t>(rank)];
      MatrixPiece piece{.rank = rank,
                        .first_row = rows_before(held, first),
                        .columns = num_rows(columns_of_rank[static_cast<size_t>(rank)]),
                        .row_runs = rows_between(held, first, first + rows),
                        .column_runs = columns_of_rank[static_cast<size_t>(rank)]};
      if (piece.rows() * piece.columns > 0) matrix.pieces.push_back(std::move(piece));
    }
    if (matrix.pieces.empty() || matrix.count() == 0) continue;  // of another stage
    const auto is_whole = [&](const MatrixPiece& piece) { return piece.rows() == rows && piece.columns == columns; };
    has_copies_ = has_copies_ && matrix.pieces.size() == static_cast<size_t>(ranks.size()) &&
                  std::ranges::all_of(matrix.pieces, is_whole);
    largest_ = std::max(largest_, matrix.count());
    matrices_.push_back(std::move(matrix));
  }
}

void MatrixPlan::assign(const MatrixRanks& ranks, const FlatLayout& layout, WholeUnits units) {
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto work_of = [&](size_t i) {
    const WholeMatrix& matrix = matrices_[i];
    return units == WholeUnits::matrices ? newton_schulz_flops(matrix.rows, matrix.columns)
                                         : static_cast<double>(matrix.count());
  };
  std::ranges::stable_sort(order, std::greater<>(), work_of);
  std::vector<double> work(static_cast<size_t>(ranks.size()), 0);
  std::vector<std::vector<int64_t>> filled(work.size());  // by owner and round: elements
  for (const size_t i : order) {
    WholeMatrix& matrix = matrices_[i];
    const auto of = [&](const MatrixPiece& piece) { return work[static_cast<size_t>(piece.rank)]; };
    matrix.owner = std::ranges::min_element(matrix.pieces, {}, of)->rank;
    work[static_cast<size_t>(matrix.owner)] += work_of(i);
    for (MatrixPiece& piece : matrix.pieces) {
      piece.is_sent = is_beside(piece.rank, matrix.owner, *layout.slots()[matrix.slot].parameter, ranks);
    }
    auto& rounds = filled[static_cast<size_t>(matrix.owner)];
    auto round = std::ranges::find_if(rounds, [&](int64_t count) { return count + matrix.count() <= largest_; });
    if (round == rounds.end()) round = rounds.insert(rounds.end(), 0);
    *round += matrix.count();
    const auto number = static_cast<size_t>(round - rounds.begin());
    if (number >= rounds_.size()) rounds_.resize(number + 1);
    rounds_[number].matrices.push_back(i);
  }
}

void MatrixPlan::make_rounds(const MatrixRanks& ranks) {
  for (Round& round : rounds_) {
    std::vector<int64_t> gathered(static_cast<size_t>(ranks.size()), 0), scattered = gathered;
    int64_t whole = 0;
    for (const size_t i : round.matrices) {
      const WholeMatrix& matrix = matrices_[i];
      whole += matrix.count();
      for (const MatrixPiece& piece : matrix.pieces) {
        if (piece.rank == matrix.owner) continue;
        for (const int rank : {piece.rank, matrix.owner}) {
          const int64_t count = piece.rows() * piece.columns;
          if (piece.is_sent) gathered[static_cast<size_t>(rank)] += count;
          scattered[static_cast<size_t>(rank)] += count;
        }
      }
    }
    round.gather_parts = parts_for(gathered, largest_);
    round.scatter_parts = parts_for(has_copies_ ? std::vector{ranks.size() > 1 ? whole : 0} : scattered, largest_);
  }
}

uint64_t MatrixPlan::digest(int rank, int owner) const {
  uint64_t digest = 1;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const MatrixPiece* piece = matrices_[i].owner == owner ? matrices_[i].piece_of(rank) : nullptr;
    if (piece == nullptr) continue;
    for (const int64_t number : {static_cast<int64_t>(i), piece->first_row, piece->columns}) {
      digest = mixed(digest, number);
    }
    for (const auto* runs : {&piece->row_runs, &piece->column_runs}) {
      for (const RowRun& run : *runs) digest = mixed(mixed(digest, run.begin), run.rows);
    }
  }
  return digest;
}

}  // namespace caravan
