#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// What one mesh axis does to a tensor, as a pair value/gradient.
struct Replicate {};  ///< R  replicate/partial: equal copies, used in n different ways; their gradients need a sum
struct Invariant {};  ///< I  replicate/replicate: equal copies, used n times in the same way
struct Partial {};    ///< P  partial/replicate: summands; the sum over the axis is pending
struct Shard {        ///< S  shard/shard: the concatenation on `dim`, by coordinate
  int dim = 0;
  std::vector<int64_t> sizes = {};  ///< rows of each coordinate; empty: equal parts
  int owner = -1;                   ///< >= 0: this coordinate holds all rows (a pipeline stage, a server)
  int64_t rows = -1;                ///< with an owner: how many rows it holds, for the coordinates that hold none
  /// The dim is this many blocks of equal size, such as query, key and value in one weight, and each of them is cut:
  /// `sizes` are the rows of one block. The piece of a coordinate is its parts of all blocks, one after another.
  int blocks = 1;
};

/// Consecutive rows of a dim.
struct RowRun {
  int64_t begin = 0;
  int64_t rows = 0;
  bool operator==(const RowRun&) const noexcept = default;
};

class Placement {
 public:
  enum class Kind : uint8_t { replicate, invariant, shard, partial };

  Placement(Replicate) : kind_(Kind::replicate) {}  // NOLINT: Replicate{} is a placement
  Placement(Invariant) : kind_(Kind::invariant) {}  // NOLINT
  Placement(Partial) : kind_(Kind::partial) {}      // NOLINT
  /// Throws LayoutError for a negative dim or size, for sizes and an owner at once, for rows without an owner, and for
  /// less than one block or several on an owner.
  Placement(Shard shard);  // NOLINT

  Kind kind() const noexcept { return kind_; }
  bool is_replicate() const noexcept { return kind_ == Kind::replicate; }
  bool is_invariant() const noexcept { return kind_ == Kind::invariant; }
  bool is_shard() const noexcept { return kind_ == Kind::shard; }
  bool is_shard(int dim) const noexcept { return kind_ == Kind::shard && shard_.dim == dim; }
  bool is_partial() const noexcept { return kind_ == Kind::partial; }
  /// Whether it is R or I: every rank holds all the rows.
  bool is_whole() const noexcept { return is_replicate() || is_invariant(); }

  /// Valid only if is_shard().
  int dim() const noexcept { return shard_.dim; }
  const std::vector<int64_t>& sizes() const noexcept { return shard_.sizes; }
  int owner() const noexcept { return shard_.owner; }
  int64_t owner_rows() const noexcept { return shard_.rows; }
  int blocks() const noexcept { return shard_.blocks; }
  /// Whether all coordinates hold equally many rows: those of a blocked shard are not adjacent.
  bool is_even() const noexcept { return shard_.sizes.empty() && shard_.owner < 0; }

  /// The number of rows of each of `n` coordinates, of all blocks, when the axis splits `rows`. Throws ShapeError
  /// naming `what` if they do not fit.
  std::vector<int64_t> split(int64_t rows, int n, const std::string& what = {}) const;

  /// "R", "I", "P", "S(0)", "S(0; 3 1 2)", "S(0; on 1)", "S(0; blocks 3)", "S(0; 2 1; blocks 3)".
  std::string to_string() const;
  /// Ignores `rows`, which is a hint and not part of the placement; to_string omits it too.
  bool operator==(const Placement& other) const noexcept;

 private:
  Kind kind_;
  Shard shard_;
};

/// Swaps value and gradient: R <-> P; I and S are their own dual. The layout of a gradient is the dual of its tensor's.
Placement dual(const Placement& placement);

}  // namespace caravan
