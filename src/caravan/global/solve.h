#pragma once

#include <optional>
#include <vector>

#include "caravan/global/operand.h"
#include "caravan/global/operation.h"
#include "caravan/redistribute/labels.h"

namespace caravan {

/// How an op runs on pieces.
struct Placing {
  std::vector<Layout> operands;  ///< to which each operand is moved first
  std::vector<Layout> outputs;
  std::vector<AxisCut> cuts;        ///< what each axis does to the op; labels in the order of their axes
  std::map<char, int64_t> extents;  ///< of the whole labels
};

struct SolveOptions {
  std::vector<std::string> data_axes{};  ///< on which parameters are never cut where they meet anything else
  bool moves_written = false;  ///< written operands may be moved too, and get the layout of what is written to them
};

/// Chooses, axis by axis, the placement that moves the fewest bytes among those that infer allows: everything whole; a
/// label that an operand has cut; a partial sum through what is linear. Never cuts a label that nobody has cut, so that
/// a layout spreads only by what the user has laid out. Parameters move rather than activations. A written operand
/// keeps its layout, but for one that may move: a slice or a summand of it may take its place.
/// Nothing if a written operand fits no placement. Deterministic: all ranks choose the same.
std::optional<Placing> solve(const TypedCall& operation, const std::vector<GlobalOperand>& operands,
                             const AxisPlaces& places, const std::vector<std::string>& axes,
                             const SolveOptions& options = {});

}  // namespace caravan
