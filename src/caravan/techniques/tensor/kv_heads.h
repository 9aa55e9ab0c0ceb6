#pragma once

#include <cstdint>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"

namespace caravan {

/// A hook around AttentionCore (nn/attention/attention.h) for axes that split the query heads but cannot split the
/// fewer key and value heads: keys and values come whole on these axes (R), and each rank takes the heads that its
/// query heads use. Of 3 kv heads for 6 query heads on 2 ranks, rank 0 takes 0 0 1 and rank 1 takes 1 2 2.
///
/// It is a hook of a Plan: it learns the layouts in the dry run, for any axes that split the heads, and sets those of
/// keys and values to that of the queries. If they already have it, it does nothing, so that two plans may both have
/// this hook.
///
///   shapes  {q, k, v, ..} of AttentionCore; k and v leave as a view of the heads in use, where the queries of the rank
///           share them evenly, else with a head for each query head
///   sends   nothing
///   grad    of k and v: P on these axes
///   throws  in a dry run LayoutError unless k and v are laid out alike, with all heads that the queries here use;
///           ShapeError for query heads that do not share the kv heads evenly
Around kv_heads(const Mesh& mesh);

/// The key/value heads of the query heads [first, first + count), in groups of `group`. A pure function.
struct KvHeads {
  int64_t first = 0;               ///< of a range in which each head is used by the same number of neighbouring query
                                   ///< heads
  int64_t count = 0;               ///< of the range; 0: see `each`
  std::vector<int64_t> each = {};  ///< by query head
  bool operator==(const KvHeads&) const noexcept = default;
};
KvHeads kv_heads_of(int64_t first, int64_t count, int64_t group);

}  // namespace caravan
