#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/training_state.h"
#include "caravan/optim/matrix_ranks.h"

namespace caravan {

/// Neighbouring rows and columns of a matrix that this rank holds.
struct FactoredBlock {
  int64_t first = 0;  ///< element of the piece of the parameter
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  ///< between rows: columns of the piece
  int64_t row = 0;     ///< of its first element, in FactoredMoments::rows()
  int64_t column = 0;  ///< in FactoredMoments::columns()
};

/// A trained parameter of this rank's stage.
struct FactoredParameter {
  size_t slot = 0;          ///< in FlatLayout::slots()
  int64_t count = 0;        ///< elements of the whole parameter
  bool is_counted = false;  ///< among ranks that hold the same piece, this one adds it to sums
  /// A parameter of two dims is `matrices` of equal size (ParameterSpec::matrices; a table of vectors is one), and has
  /// factored moments; 0: it has none.
  int64_t matrices = 0;
  int64_t rows = 0;  ///< of one matrix
  int64_t columns = 0;
  int64_t row = 0;  ///< where its rows begin in FactoredMoments::rows()
  int64_t column = 0;
  std::vector<FactoredBlock> blocks{};
};

/// Second moments of matrices as means over their rows and over their columns. Which elements a rank holds follows from
/// its own layouts, in every layout; all ranks of a stage keep the means of all its matrices, which are small.
class FactoredMoments {
 public:
  /// Allocates the means: zeros. Every rank of the engine's mesh calls it. Throws UsageError, on every rank, for a
  /// parameter that is a tile.
  explicit FactoredMoments(const FlatState& state);
  ~FactoredMoments();

  const MatrixRanks& ranks() const noexcept { return *ranks_; }
  const std::vector<FactoredParameter>& parameters() const noexcept { return parameters_; }
  /// The means of all rows of the matrices, matrix by matrix, and of all columns: flat, in the dtype of the values.
  const at::Tensor& rows() const noexcept { return rows_; }
  const at::Tensor& columns() const noexcept { return columns_; }
  /// Visits the means of each parameter, "NAME": [rows], and [columns], or a dim more where it is several matrices.
  void walk(const StateOwner::Visit& visit);

 private:
  struct Means;
  bool is_of_stage(const Parameter& parameter) const;
  bool is_counted(const Parameter& parameter, size_t slot) const;
  void add_blocks(FactoredParameter& to, const Parameter& parameter) const;
  void add_means(const FactoredParameter& of, const Parameter& parameter);

  const FlatState& state_;
  std::optional<MatrixRanks> ranks_;
  std::vector<FactoredParameter> parameters_;
  at::Tensor rows_;
  at::Tensor columns_;
  std::vector<std::unique_ptr<Means>> means_;  ///< of all stages
};

}  // namespace caravan
