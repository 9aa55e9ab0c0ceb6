#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/types.h"
#include "caravan/comm/work.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// One redistribution along one axis.
struct AxisMove {
  std::string axis;
  Placement from;
  Placement to;
  bool operator==(const AxisMove&) const noexcept = default;
};

/// The moves of redistribute(x, layout, to, mesh), in their order.
std::vector<AxisMove> moves_between(const Layout& layout, const Layout& to);

/// A cell of the law for many tensors at once: a flat buffer that holds their pieces one after another.
struct FlatCell {
  MeshAxis axis;
  Placement from;
  Placement to;
  /// Elements of each coordinate, if one side is a shard: parts of the whole buffer in the order of coordinates. So a
  /// buffer of several tensors is sharded at cuts, each tensor as S(0; sizes) with some sizes 0.
  std::vector<int64_t> counts{};

  int64_t whole() const;   ///< elements of the side that is not a shard; 0 if none is
  int64_t own() const;     ///< elements of this coordinate's part
  int64_t before() const;  ///< elements of the parts before it
};

/// Starts the cell: P -> R, P -> I (may be in place), P -> S, S -> R, S -> I, with even, uneven or owned shards, and
/// from owner to owner (a send; `out` is used by the receiver alone). `in` and `out` are flat, contiguous, of one
/// dtype; they may be the same memory if the communicator allows it. Bitwise equal to redistribute for each tensor if
/// the order of sums is the same. Collective. Sends what redistribute sends. Throws InternalError for other cells,
/// blocked shards included, and for sizes that do not fit.
Work start(const FlatCell& cell, const at::Tensor& in, const at::Tensor& out, const Call& call = {});

/// Starts the cell S(0; on coordinate `source`) -> I: `flat`, of any dtype, becomes that of `source`. Collective.
Work start_copy_from(int source, const at::Tensor& flat, const MeshAxis& axis, const Call& call = {});

}  // namespace caravan
