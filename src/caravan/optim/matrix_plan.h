#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/engine/flat/flat.h"
#include "caravan/mesh/fit.h"
#include "caravan/optim/matrix_ranks.h"

namespace caravan {

/// What a rank holds of a matrix: neighbouring rows of its piece of a parameter.
struct MatrixPiece {
  int rank = 0;                       ///< of MatrixRanks
  int64_t first_row = 0;              ///< in the piece of the parameter
  int64_t columns = 0;                ///< of that
  std::vector<RowRun> row_runs{};     ///< the rows of the matrix, in the order of the piece
  std::vector<RowRun> column_runs{};  ///< its columns
  bool is_sent = false;               ///< its owner gets it from this rank, and not from one that holds the same
  int64_t rows() const { return num_rows(row_runs); }
  /// Whether it is consecutive rows of the matrix, whole ones.
  bool is_whole_rows(int64_t columns_of_matrix) const { return row_runs.size() == 1 && columns == columns_of_matrix; }
};

/// A matrix that one rank updates for all that hold pieces of it. Of WholeUnits::parameters, a parameter of any dims: a
/// row is what has one index of dim 0.
struct WholeMatrix {
  size_t slot = 0;  ///< in FlatLayout::slots()
  int64_t rows = 0;
  int64_t columns = 0;
  int owner = 0;                      ///< of MatrixRanks: holds some of it
  std::vector<MatrixPiece> pieces{};  ///< by rank, of those that hold some
  int64_t count() const noexcept { return rows * columns; }
  /// What `rank` holds; null: nothing.
  const MatrixPiece* piece_of(int rank) const noexcept;
};

/// Whether an optimizer of matrices updates this parameter as such: trained, of two dims, and no table of vectors
/// (ParameterSpec::matrices).
bool is_of_matrices(const Parameter& parameter);

/// What is brought to one rank as a whole.
enum class WholeUnits : uint8_t {
  matrices,   ///< of is_of_matrices(): each of a parameter's on its own, for Newton-Schulz
  parameters  ///< every trained one of which some rank holds a part: rows of dim 0, which alone may be cut
};

/// Which rank updates which matrix of a model, and in which order. The same on all of MatrixRanks, from layouts alone.
///
/// The owners have about the same work, FLOPs of Newton-Schulz or elements: the next largest matrix goes to the rank
/// with the least among those that hold some of it. A round has for each rank as many matrices as together are no
/// larger than the largest of all, so a rank has at most one such matrix in memory at a time.
class MatrixPlan {
 public:
  struct Round {
    std::vector<size_t> matrices{};  ///< of matrices()
    /// In how many messages pieces go to owners, and updates back, so that what a rank sends and receives at once is no
    /// larger than the largest matrix; 0: none moves.
    int64_t gather_parts = 0;
    int64_t scatter_parts = 0;
  };

  /// Sends nothing. Throws UsageError, naming it, for a parameter that is cut into tiles, or whose shards do not follow
  /// from this rank's layouts.
  MatrixPlan(const FlatLayout& layout, const MatrixRanks& ranks, WholeUnits units = WholeUnits::matrices);

  const std::vector<WholeMatrix>& matrices() const noexcept { return matrices_; }
  const std::vector<Round>& rounds() const noexcept { return rounds_; }
  int64_t largest() const noexcept { return largest_; }  ///< elements
  /// Whether every rank holds all matrices whole.
  bool has_copies() const noexcept { return has_copies_; }
  /// For each rank, a number that stands for all that it holds of the matrices of `owner`.
  uint64_t digest(int rank, int owner) const;

 private:
  void add(size_t slot, const Parameter& parameter, const MatrixRanks& ranks, WholeUnits units);
  void assign(const MatrixRanks& ranks, const FlatLayout& layout, WholeUnits units);
  void make_rounds(const MatrixRanks& ranks);

  std::vector<WholeMatrix> matrices_;  ///< in the order of the parameters
  std::vector<Round> rounds_;
  int64_t largest_ = 0;
  bool has_copies_ = true;
};

}  // namespace caravan
