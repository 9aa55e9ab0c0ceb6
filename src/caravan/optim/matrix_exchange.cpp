#include "caravan/optim/matrix_exchange.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>

#include "caravan/comm/tensor.h"
#include "caravan/module/path.h"

namespace caravan {
namespace {

/// Rows of a piece.
struct PieceRows {
  int64_t begin = 0;
  int64_t count = 0;
};

PieceRows rows_of_part(const MatrixPiece& piece, int64_t part, int64_t parts) {
  const int64_t rows = piece.rows(), begin = rows * part / parts;
  return {begin, rows * (part + 1) / parts - begin};
}

/// Copies rows of a piece from their places in the whole matrix to `block`, or back.
void copy_rows(const at::Tensor& whole, const MatrixPiece& piece, const PieceRows& rows, const at::Tensor& block,
               bool to_whole) {
  if (rows.count == 0) return;
  const at::Tensor lines = block.view({rows.count, piece.columns});
  int64_t row = 0;  // of the piece
  for (const RowRun& run : piece.row_runs) {
    const int64_t begin = std::max(row, rows.begin), end = std::min(row + run.rows, rows.begin + rows.count);
    int64_t column = 0;  // of the piece
    for (const RowRun& columns : piece.column_runs) {
      if (begin >= end) break;
      const at::Tensor there =
          whole.narrow(0, run.begin + begin - row, end - begin).narrow(1, columns.begin, columns.rows);
      const at::Tensor here = lines.narrow(0, begin - rows.begin, end - begin).narrow(1, column, columns.rows);
      to_whole ? there.copy_(here) : here.copy_(there);
      column += columns.rows;
    }
    row += run.rows;
  }
}

std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> starts(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), int64_t{0});
  return starts;
}

int64_t total_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

/// A part of a round in one direction.
struct MatrixExchange::Step {
  const MatrixPlan::Round& round;
  const std::vector<at::Tensor>& own;
  const Visit& visit;
  bool gathers;
  int64_t part;
  int64_t parts;
};

/// Rows of a piece between its rank and the owner of its matrix.
struct MatrixExchange::Message {
  const WholeMatrix& matrix;
  const MatrixPiece& piece;
  const at::Tensor& whole;  ///< if this rank owns it
  PieceRows rows;
  int from;
  int to;
  int64_t count() const { return rows.count * piece.columns; }
  /// In the flat piece of the parameter.
  int64_t first() const { return (piece.first_row + rows.begin) * piece.columns; }
};

/// In the same order on both ranks of a message.
template <class F>
void MatrixExchange::for_each_message(const Step& step, const F& f) const {
  for (size_t i = 0; i < step.round.matrices.size(); ++i) {
    const WholeMatrix& matrix = plan_.matrices()[step.round.matrices[i]];
    for (const MatrixPiece& piece : matrix.pieces) {
      if (piece.rank == matrix.owner || (step.gathers && !piece.is_sent)) continue;
      if (piece.rank != ranks_.rank() && matrix.owner != ranks_.rank()) continue;
      f(Message{matrix, piece, step.own[i], rows_of_part(piece, step.part, step.parts),
                step.gathers ? piece.rank : matrix.owner, step.gathers ? matrix.owner : piece.rank});
    }
  }
}

void MatrixExchange::gather(const MatrixPlan::Round& round, const std::vector<at::Tensor>& own,
                            const Visit& read) const {
  const int64_t parts = std::max<int64_t>(round.gather_parts, 1);
  for (int64_t part = 0; part < parts; ++part) {
    const Step step{round, own, read, /*gathers=*/true, part, parts};
    move_own(step);
    if (round.gather_parts > 0) move(step);
  }
}

void MatrixExchange::scatter(const MatrixPlan::Round& round, const std::vector<at::Tensor>& own,
                             const Visit& write) const {
  const int64_t parts = std::max<int64_t>(round.scatter_parts, 1);
  for (int64_t part = 0; part < parts; ++part) {
    const Step step{round, own, write, /*gathers=*/false, part, parts};
    move_own(step);
    if (round.scatter_parts == 0) continue;
    plan_.has_copies() ? gather_updates(step) : move(step);
  }
}

/// What a rank holds of its own matrices, without a copy if that is whole rows.
void MatrixExchange::move_own(const Step& step) const {
  for (size_t i = 0; i < step.round.matrices.size(); ++i) {
    const WholeMatrix& matrix = plan_.matrices()[step.round.matrices[i]];
    if (matrix.owner != ranks_.rank()) continue;
    const MatrixPiece& piece = *matrix.piece_of(matrix.owner);
    const PieceRows rows = rows_of_part(piece, step.part, step.parts);
    const int64_t first = (piece.first_row + rows.begin) * piece.columns;
    if (rows.count == 0) continue;
    if (piece.is_whole_rows(matrix.columns)) {
      const int64_t row = piece.row_runs.front().begin + rows.begin;
      step.visit(matrix, first, step.own[i].narrow(0, row, rows.count).view({-1}));
      continue;
    }
    const at::Tensor block = at::empty({rows.count * piece.columns}, options_);
    if (!step.gathers) copy_rows(step.own[i], piece, rows, block, /*to_whole=*/false);
    step.visit(matrix, first, block);
    if (step.gathers) copy_rows(step.own[i], piece, rows, block, /*to_whole=*/true);
  }
}

void MatrixExchange::move(const Step& step) const {
  std::vector<int64_t> sent(static_cast<size_t>(ranks_.size()), 0), received = sent;
  const int self = ranks_.rank();
  for_each_message(step, [&](const Message& message) {
    const bool is_sent = message.from == self;
    (is_sent ? sent[static_cast<size_t>(message.to)] : received[static_cast<size_t>(message.from)]) += message.count();
  });
  const at::Tensor in = at::empty({total_of(sent)}, options_), out = at::empty({total_of(received)}, options_);
  std::vector<int64_t> places = starts_of(sent);
  for_each_message(step, [&](const Message& message) {
    if (message.from != self) return;
    int64_t& place = places[static_cast<size_t>(message.to)];
    const at::Tensor block = in.narrow(0, place, message.count());
    place += message.count();
    if (!step.gathers) return copy_rows(message.whole, message.piece, message.rows, block, /*to_whole=*/false);
    if (message.count() > 0) step.visit(message.matrix, message.first(), block);
  });
  const char* what = step.gathers ? "pieces of matrices" : "updates of matrices";
  all_to_all_async(ranks_.comm(), in, out, sent, received, what).wait();
  take_path(what, out);
  places = starts_of(received);
  for_each_message(step, [&](const Message& message) {
    if (message.to != self) return;
    int64_t& place = places[static_cast<size_t>(message.from)];
    const at::Tensor block = out.narrow(0, place, message.count());
    place += message.count();
    if (step.gathers) return copy_rows(message.whole, message.piece, message.rows, block, /*to_whole=*/true);
    if (message.count() > 0) step.visit(message.matrix, message.first(), block);
  });
}

/// Where every rank gets every update, all pass them on at the same time.
void MatrixExchange::gather_updates(const Step& step) const {
  std::vector<int64_t> counts(static_cast<size_t>(ranks_.size()), 0);
  const auto for_each = [&](const auto& f) {
    for (size_t i = 0; i < step.round.matrices.size(); ++i) {
      const WholeMatrix& matrix = plan_.matrices()[step.round.matrices[i]];
      const PieceRows rows = rows_of_part(matrix.pieces.front(), step.part, step.parts);  // of every rank
      f(matrix, step.own[i], rows, counts[static_cast<size_t>(matrix.owner)]);
    }
  };
  for_each([](const WholeMatrix& matrix, const at::Tensor&, const PieceRows& rows, int64_t& count) {
    count += rows.count * matrix.columns;
  });
  const at::Tensor all = at::empty({total_of(counts)}, options_);
  std::vector<int64_t> sizes = counts;
  counts = starts_of(sizes);
  const auto self = static_cast<size_t>(ranks_.rank());
  const at::Tensor mine = all.narrow(0, counts[self], sizes[self]);
  int64_t place = 0;
  for_each([&](const WholeMatrix& matrix, const at::Tensor& whole, const PieceRows& rows, int64_t&) {
    if (matrix.owner != ranks_.rank()) return;
    mine.narrow(0, place, rows.count * matrix.columns).copy_(whole.narrow(0, rows.begin, rows.count).view({-1}));
    place += rows.count * matrix.columns;
  });
  all_gather_async(ranks_.comm(), mine, all, sizes, "updates of matrices").wait();
  take_path("updates of matrices", all);
  for_each([&](const WholeMatrix& matrix, const at::Tensor&, const PieceRows& rows, int64_t& at) {
    const int64_t count = rows.count * matrix.columns;
    const at::Tensor block = all.narrow(0, at, count);
    at += count;
    const int64_t first = matrix.piece_of(ranks_.rank())->first_row + rows.begin;
    if (matrix.owner != ranks_.rank() && count > 0) step.visit(matrix, first * matrix.columns, block);
  });
}

}  // namespace caravan
