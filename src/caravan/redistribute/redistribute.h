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
///   x       local piece, of any dtype that communicators take; for an even S(d): [.., D/n, ..], n = axis.size(). Never
///           written, may be non-contiguous. On a record world it may be a meta tensor.
///   returns S->R, S->I: [.., D, ..]; R->S, I->S: [.., D/n, ..]; S->P: [.., D, ..], zero outside its rows; else the
///           shape of x. n == 1, or the same placement: x itself, no copy, no bytes. Read-only for the caller: it
///           shares the memory of x wherever nothing has to move (slices, R <-> I, on coordinate 0 what it keeps, on an
///           owner what it has).
///   sends   see redistribute_bytes: S->R, S->I: (n-1)x; P->S, S->S: (n-1)/n x; P->R, P->I: 2(n-1)/n x; else nothing.
///           With an owner: S->R a broadcast, P->S a reduce, owner to owner a send
///   grad    as the law says, itself differentiable. Under no_grad R and I are one thing. A rank whose result took no
///           part in the loss still has to take part in the backward: use it, times 0
///   throws  LayoutError if axis has no placement, is not the minor axis of the dim it leaves, or the dim is not there;
///           ShapeError if a dim is not divisible by n, sizes do not add up to it, x has not the rows its coordinate
///           should have, or an owner is left without Shard::rows; UsageError if the dtype has no sum; CommError as
///           Communicator. All but the last before anything is sent
///
/// R -> I is in the table and legal, but n-1 ranks back-propagate zeros: go P -> I or S -> I instead.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to,
                        const Call& call = {});

/// redistribute, one axis after the other, from `layout` to `to`: what shrinks the piece goes first, what makes it grow
/// last. Where dims swap their axes, one axis goes through R. Every layout reaches every other. Throws LayoutError if
/// the two do not name the same axes.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const Layout& to, const Mesh& mesh,
                        const Call& call = {});

/// Bytes this rank sends for redistribute(x, layout, axis, to), x of `local_shape`: what the record back-end counts.
/// Throws as redistribute.
int64_t redistribute_bytes(const std::vector<int64_t>& local_shape, int64_t element_bytes, const Placement& from,
                           const Placement& to, const MeshAxis& axis);

/// Starts backward from a scalar loss that is I or P on every axis, with 1 on every rank.
/// Throws LayoutError if an axis is R or S: an R loss with 1 on every rank would count n times. ShapeError if it is no
/// scalar, UsageError if it requires no gradient.
void backward(const at::Tensor& loss, const Layout& layout);

}  // namespace caravan
