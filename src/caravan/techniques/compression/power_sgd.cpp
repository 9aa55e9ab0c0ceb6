#include "caravan/techniques/compression/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/numeric/random.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

/// a . b in fp64, in order.
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Subtracts the projection of `vector` on the columns, and scales the rest to length 1. Returns false if only rounding
/// errors are left.
bool make_orthonormal(std::vector<double>& vector, const std::vector<std::vector<double>>& columns) {
  const double length = std::sqrt(dot(vector, vector));
  for (int pass = 0; pass < 2; ++pass) {  // one pass leaves cancellation errors
    for (const std::vector<double>& column : columns) {
      const double part = dot(vector, column);
      for (size_t i = 0; i < vector.size(); ++i) vector[i] -= part * column[i];
    }
  }
  const double rest = std::sqrt(dot(vector, vector));
  if (!(rest > 1e-12 * length)) return false;
  for (double& x : vector) x /= rest;
  return true;
}

/// The unit vector with the smallest projection on the columns, without that projection.
std::vector<double> another_direction(size_t rows, const std::vector<std::vector<double>>& columns) {
  std::vector<double> weight(rows, 0);
  for (const std::vector<double>& column : columns) {
    for (size_t i = 0; i < rows; ++i) weight[i] += column[i] * column[i];
  }
  std::vector<double> vector(rows, 0);
  vector[static_cast<size_t>(std::ranges::min_element(weight) - weight.begin())] = 1;
  make_orthonormal(vector, columns);
  return vector;
}

/// Replaces `matrix` [rows, rank], rank < rows, by an orthonormal basis of its columns; dependent columns are replaced
/// by other directions, so that the next step may find something there. Gram-Schmidt in fp64. It runs on every rank and
/// must give all of them the same bits, which LAPACK does not do on unlike processors: these loops are compiled for the
/// baseline instruction set and add in order.
void orthonormalise(at::Tensor& matrix) {
  const at::Tensor given = matrix.to(at::kDouble).t().contiguous();
  if (matrix.is_meta()) return;
  const auto rows = static_cast<size_t>(given.size(1));
  std::vector<std::vector<double>> columns;
  for (int64_t c = 0; c < given.size(0); ++c) {
    const double* begin = given.const_data_ptr<double>() + static_cast<size_t>(c) * rows;
    std::vector<double> column(begin, begin + rows);
    if (!make_orthonormal(column, columns)) column = another_direction(rows, columns);
    std::ranges::copy(column, given.mutable_data_ptr<double>() + static_cast<size_t>(c) * rows);
    columns.push_back(std::move(column));
  }
  matrix.copy_(given.t());
}

/// out = left right^T, as a matrix product with the same bits on unlike processors: products and sums of elements are
/// rounded one by one.
void outer_product(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  constexpr int64_t kElements = 1 << 15;  // of out at a time, which stay in a cache
  const at::Tensor columns = right.t().contiguous();
  const int64_t step = std::max<int64_t>(kElements / std::max<int64_t>(out.size(1), 1), 1);
  at::Tensor product = at::empty({std::min(step, out.size(0)), out.size(1)}, out.options());
  for (int64_t row = 0; row < out.size(0); row += step) {
    const int64_t count = std::min(step, out.size(0) - row);
    at::Tensor sum = out.narrow(0, row, count);
    const at::Tensor factors = left.narrow(0, row, count);
    at::Tensor part = product.narrow(0, 0, count);
    at::mul_out(sum, factors.narrow(1, 0, 1), columns[0]);
    for (int64_t i = 1; i < left.size(1); ++i) sum.add_(at::mul_out(part, factors.narrow(1, i, 1), columns[i]));
  }
}

}  // namespace

/// A gradient that is compressed, as a matrix.
struct PowerSgdHook::Matrix {
  at::Tensor values;     ///< [a, b]: this rank's summand; in the end the sum
  at::Tensor residual;   ///< [a, b]: this rank's summand plus the earlier residual; finally the new residual
  at::Tensor left{};     ///< [a, rank], in a message
  at::Tensor right{};    ///< [b, rank], in a message
  at::Tensor* factor{};  ///< [b, rank], of the last step
};

/// The messages of a range of gradients.
struct PowerSgdHook::Message {
  std::vector<Matrix> matrices;
  std::vector<std::pair<at::Tensor, at::Tensor>> plain;  ///< values, and their positions in the first message
  at::Tensor first;                                      ///< left factors, and gradients that are not compressed
  at::Tensor second;                                     ///< right factors
};

PowerSgdHook::PowerSgdHook(int64_t rank, uint64_t seed) : rank_(rank), seed_(seed) {
  if (rank >= 1) return;
  throw UsageError({"powersgd", "rank", fmt::format("{} columns", rank), "", "use 1 or more"});
}

std::string PowerSgdHook::name() const { return fmt::format("powersgd {} seed {}", rank_, seed_); }

at::Tensor& PowerSgdHook::factor_of(const GradientRange::Piece& piece, int64_t columns) {
  at::Tensor& factor = factors_[piece.name];
  if (factor.defined() && factor.size(0) == columns) return factor;  // the factor of a checkpoint may not fit
  const MemoryKindScope kind(MemoryKind::optimizer);
  factor = at::empty({columns, rank_}, residual_.options());
  at::Tensor numbers = at::empty({columns, rank_}, factor.options().dtype(at::kFloat));
  if (factor.is_meta()) return factor;
  RandomStream(seed_, "powersgd " + piece.name)
      .normal(0, {numbers.mutable_data_ptr<float>(), static_cast<size_t>(numbers.numel())});
  factor.copy_(numbers);
  return factor;
}

void PowerSgdHook::reduce(const GradientRange& range, TransferStages& stages) {
  auto message = std::make_shared<Message>();
  int64_t first_count = 0;
  int64_t second_count = 0;
  for (const GradientRange::Piece& piece : range.pieces) {
    const int64_t count = c10::multiply_integers(piece.shape);
    const int64_t rows = piece.shape.empty() ? 1 : piece.shape.front();
    const int64_t columns = count / rows;
    const at::Tensor values = range.values.narrow(0, piece.offset, count);
    if (rank_ * (rows + columns) >= count) {
      message->plain.emplace_back(values, at::Tensor());
      first_count += count;
      continue;
    }
    const at::Tensor residual = residual_.narrow(0, range.offset + piece.offset, count);
    message->matrices.push_back({.values = values.view({rows, columns}),
                                 .residual = residual.view({rows, columns}),
                                 .factor = &factor_of(piece, columns)});
    first_count += rank_ * rows;
    second_count += rank_ * columns;
  }
  stages.add([this, range, message, first_count, second_count] {
    message->first = at::empty({first_count}, range.values.options());
    message->second = at::empty({second_count}, range.values.options());
    int64_t first = 0;
    int64_t second = 0;
    const auto take = [](const at::Tensor& buffer, int64_t& offset, int64_t count) {
      offset += count;
      return buffer.narrow(0, offset - count, count);
    };
    for (Matrix& matrix : message->matrices) {
      matrix.left = take(message->first, first, rank_ * matrix.values.size(0)).view({-1, rank_});
      matrix.right = take(message->second, second, rank_ * matrix.values.size(1)).view({-1, rank_});
      matrix.residual.add_(matrix.values);
      at::mm_out(matrix.left, matrix.residual, *matrix.factor);
    }
    for (auto& [values, place] : message->plain) {
      place = take(message->first, first, values.numel());
      place.copy_(values);
    }
    return all_reduce_async(range.axis.comm(), message->first, message->first, ReduceOp::sum, name());
  });
  if (message->matrices.empty()) {
    stages.add_local([message] {
      for (const auto& [values, place] : message->plain) values.copy_(place);
    });
    return;
  }
  stages.add([this, range, message] {
    for (Matrix& matrix : message->matrices) {
      orthonormalise(matrix.left);
      at::mm_out(matrix.right, matrix.residual.t(), matrix.left);
      // The part of this rank's summand outside these columns: the residuals add up to what the sum lacks.
      matrix.residual.addmm_(matrix.left, matrix.right.t(), 1, -1);
    }
    return all_reduce_async(range.axis.comm(), message->second, message->second, ReduceOp::sum, name());
  });
  stages.add_local([message] {
    for (Matrix& matrix : message->matrices) {
      outer_product(matrix.values, matrix.left, matrix.right);
      matrix.factor->copy_(matrix.right);
    }
    for (const auto& [values, place] : message->plain) values.copy_(place);
    *message = {};
  });
}

std::vector<std::pair<std::string, at::Tensor>> PowerSgdHook::shared() const {
  return {factors_.begin(), factors_.end()};
}

void PowerSgdHook::set_shared(const std::string& name, const at::Tensor& value) {
  if (value.dim() == 2 && value.size(1) == rank_) factors_[name] = value.clone();
}

}  // namespace caravan
