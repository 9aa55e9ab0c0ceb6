#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/global/names.h"
#include "caravan/session/session.h"
#include "caravan/session/trainable.h"

namespace caravan {

struct CandidateOptions {
  std::string axis = "tp";
  std::vector<DimNames> names{};  ///< of dims of parameters, in addition to standard_names(), which they win over
  DimExtents extents{};           ///< in addition to standard_extents()
};

/// Parameters that one choice lays out, and what there is to choose.
struct LayoutCandidates {
  struct Choice {
    std::string text{};                  ///< "whole", "dim 0", "dim 0 in 3 blocks", or "cut" of a dim with a name
    std::vector<NamedLayout> layouts{};  ///< of the parameters that are cut, for tensor() and distribute_module()
    int64_t size = 0;                    ///< of the dim that is cut, or of one of its blocks; 0: of a name
  };
  std::string what{};                     ///< "blocks.*.up.weight", or the name of a dim
  std::vector<std::string> parameters{};  ///< their dotted names
  std::vector<Choice> choices{};          ///< the first is whole, and at least one more
};

/// The legal layouts of each parameter of a module of one's own on an axis of the mesh, among which plan() searches.
/// Legal: each rank has some of the dim, which need not divide evenly. All of them compute what one process does; what
/// they cost, only a rehearsal tells.
///
/// A choice is one for
/// - a weight, and the vectors of the same module that are as long as its dim 0 and go with it, in all equal layers:
///   "blocks.0.up" and "blocks.1.up", if their shapes are equal. Each dim may be cut. One of three times as many rows
///   as columns may be three weights, so its rows may also be cut in three blocks;
/// - a dim that has a name, in all parameters that have it: standard_names() and those of the options. A parameter with
///   names is cut by them alone.
/// Parameters that nothing can cut are left out. Two choices may be about one parameter, which only one of them cuts.
///
/// Allocates and sends nothing. Throws UsageError for a Module of this library, and an axis that the mesh does not
/// have; and as named_layouts() for names that do not fit.
std::vector<LayoutCandidates> candidates(const Trainable& net, const Mesh& mesh, const CandidateOptions& options = {});
std::vector<LayoutCandidates> candidates(const Trainable& net, const Session& session,
                                         const CandidateOptions& options = {});

}  // namespace caravan
