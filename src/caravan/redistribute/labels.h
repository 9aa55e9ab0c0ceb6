#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/mesh/layout.h"
#include "caravan/redistribute/op_type.h"

namespace caravan {

/// The labels of each dim of one tensor, the slowest first; "" for a dim of one element.
using Dims = std::vector<std::string>;

/// An OpType taken apart.
struct LabelledOp {
  LabelledOp() = default;
  /// Throws UsageError for labels that cannot be read, or for another number of operands.
  LabelledOp(const OpType& type, size_t num_operands);

  std::string text;  ///< OpType::labels
  std::vector<Dims> inputs;
  std::vector<Dims> outputs;
  std::string whole;
  std::vector<std::vector<int>> terms;
  std::map<char, int64_t> extents;
};

/// Where `dims` have `label`: the dim and the position in it; nothing if they do not have it.
std::optional<std::pair<int, int>> position_of(const Dims& dims, char label);
inline bool has_label(const Dims& dims, char label) { return position_of(dims, label).has_value(); }

/// What one axis does to one operand: a placement whose shard is of a label. Sizes and rows are in elements of the
/// label.
struct Cut {
  enum class Kind : uint8_t { replicate, invariant, partial, label, between };  ///< between: of no whole label

  Kind kind = Kind::replicate;
  char label = 0;
  std::vector<int64_t> sizes{};
  int blocks = 1;
  int owner = -1;
  int64_t rows = -1;

  bool is_label() const noexcept { return kind == Kind::label; }
  bool is_partial() const noexcept { return kind == Kind::partial; }
  bool is_whole() const noexcept { return kind == Kind::replicate || kind == Kind::invariant; }
  /// Ignores `rows`.
  bool operator==(const Cut& other) const noexcept;
};

/// Number of coordinates, and this rank's, of the axis of that name.
struct AxisPlace {
  int size = 1;
  int coord = 0;
};
/// Of each axis of a mesh; without it, dims in parentheses cannot be typed.
using AxisPlaces = std::map<std::string, AxisPlace, std::less<>>;
AxisPlaces places_of(const Mesh& mesh);

struct AxisCut {
  std::string axis;
  Cut cut;
};

/// What each axis of `layout` does to an operand with `dims`, in the order of the layout. `extents`: elements of the
/// labels of the whole tensor; those that are missing are not checked.
std::vector<AxisCut> cuts_of(const Layout& layout, const Dims& dims, const std::map<char, int64_t>& extents,
                             const AxisPlaces& places);

/// The layout of a tensor with `dims` whose axes cut it so; axes that cut one label in the order given, the major one
/// first. Nothing if a dim made of several labels cannot be cut like that by a layout that is the same on all ranks.
std::optional<Layout> layout_of(std::span<const AxisCut> cuts, const Dims& dims, const std::map<char, int64_t>& extents,
                                const AxisPlaces& places);

}  // namespace caravan
