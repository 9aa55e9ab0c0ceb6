#pragma once

#include <functional>

#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {

using LawFn = std::function<at::Tensor(const at::Tensor&, const Layout&, const MeshAxis&, const Placement&)>;

/// The library's own law.
LawFn library_law();
/// The library's forward with a custom backward: redistribute(dual(to) -> dual(from)) for any `dual`, so that the
/// checks can be shown to fail when the law is wrong.
LawFn law_with_dual(Placement (*dual)(const Placement&));

/// Placements to try on an axis of `n`, for a tensor whose dims the axis finds with `rows` rows each: R, I, P, even
/// shards of every dim, uneven sizes with an empty part, owners.
std::vector<Placement> placements_for(int n, const std::vector<int64_t>& rows);

/// Blocked shards of such a tensor, even and uneven ones, with 2 blocks and with blocks of 2 rows.
std::vector<Placement> blocked_for(int n, const std::vector<int64_t>& rows);

struct Checked {
  int num_checked = 0;
  int num_refused = 0;
  std::vector<std::string> wrong;
};

/// Every cell of axis t, with every placement of axis o (if the mesh has one) before and after it in the layout:
///   forward    the result denotes the same tensor, and x is unchanged;
///   backward   the gradient of an arbitrary cotangent G denotes G, and is well formed;
///   pairing    <x, gradient of x> = <y, gradient of y> = <X, G>;
///   bytes      what the axis sent is redistribute_bytes, both ways.
Checked check_cells(const Axes& axes, const LawFn& law);
/// The same between blocked shards, and from and to other placements, where axis o may be blocked too.
Checked check_blocked_cells(const Axes& axes, const LawFn& law);

/// a -> b -> c has the value and the gradient of a -> c, for every triple on an axis of `n`.
Checked check_paths(int n, const LawFn& law);

}  // namespace caravan::testing
