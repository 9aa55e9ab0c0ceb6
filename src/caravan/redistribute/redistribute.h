#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/comm/types.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// Moves `x` along one mesh axis from its placement in `layout` to `to`; the global tensor stays the same. The one law
/// of the library: with the dual R <-> P, I <-> I, S <-> S, backward of (a -> b) is redistribute(dual(b) -> dual(a)).
///
/// Every rank of `axis` calls it, in the same order, with the same dtype and layout; the result has layout.moved(axis,
/// to).
///   x       local piece, any dtype; for an even S(d): [.., D/n, ..], n = axis.size(). Never written, may be
///   non-contiguous. returns S->R, S->I: [.., D, ..]; R->S, I->S: [.., D/n, ..] (a view); S->P: [.., D, ..], zero
///   outside its rows; else the shape
///           of x. n == 1, or the same placement: x itself, no copy, no bytes.
///   sends   see redistribute_bytes: S->R, S->I: (n-1)x; P->S, S->S: (n-1)/n x; P->R, P->I: 2(n-1)/n x; else nothing
///   grad    as the law says, itself differentiable. Under no_grad R and I are one thing.
///   throws  ShapeError if a dim is not divisible by n, or sizes do not add up; LayoutError if axis is not the minor
///   axis of the
///           dim it leaves, or its placement is missing; CommError as Communicator
///
/// R -> I is in the table and legal, but n-1 ranks back-propagate zeros: go P -> I or S -> I instead.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to,
                        const Call& call = {});

/// redistribute, axis by axis, from `layout` to `to` (same axes): axes that leave a dim go first, minor before major,
/// then those that arrive, major before minor. Throws LayoutError if `to` asks for an order of axes on a dim that
/// cannot be reached.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const Layout& to, const Mesh& mesh,
                        const Call& call = {});

/// Bytes this rank sends for redistribute(x, layout, axis, to), x of `local_shape`: what the record back-end counts.
int64_t redistribute_bytes(const std::vector<int64_t>& local_shape, int64_t element_bytes, const Placement& from,
                           const Placement& to, const MeshAxis& axis);

/// Starts backward from a scalar loss that is I or P on every axis, with 1 on every rank.
/// Throws LayoutError if an axis is R or S: an R loss with 1 on every rank would count n times.
void backward(const at::Tensor& loss, const Layout& layout);

}  // namespace caravan
