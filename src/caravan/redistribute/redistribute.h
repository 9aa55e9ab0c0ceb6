#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/comm/types.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// Changes the placement of `x` on one mesh axis from the one in `layout` to `to`. The global tensor stays the same.
/// The one law of the library: with the dual R <-> P, I <-> I, S <-> S, the backward of (a -> b) is (dual(b) ->
/// dual(a)).
///
/// Collective: every rank of `axis` calls it, in the same order, with the same dtype and layout. The result has the
/// layout layout.moved(axis, to).
///   x       the local piece, of any dtype that communicators support; for an even S(d): [.., D/n, ..], n =
///           axis.size(). Never written; may be non-contiguous. On a record world it may be a meta tensor.
///   returns S->R, S->I: [.., D, ..]; R->S, I->S: [.., D/n, ..]; S->P: [.., D, ..], zero outside its rows; else the
///           shape of x. If n == 1 or the placement is the same: x itself. Treat it as read-only: it shares memory with
///           x wherever nothing moves (slices, except blocked ones, R <-> I, what coordinate 0 or an owner keeps).
///   sends   see redistribute_bytes: S->R, S->I: (n-1)x; P->S, S->S: (n-1)/n x; P->R, P->I: 2(n-1)/n x; else nothing.
///           With an owner: S->R is a broadcast, P->S a reduce, owner to owner a send.
///   grad    by the law; itself differentiable. Under no_grad R and I are the same. Every rank must take part in the
///           backward: a rank that does not need its result adds it to the loss times 0.
///   throws  LayoutError if axis has no placement, is not the minor axis of the dim it leaves, or the dim does not
///           exist; ShapeError if a dim is not divisible by n, sizes do not add up to it, x does not have the rows its
///           coordinate should have, or x leaves an owner without Shard::rows; UsageError if the dtype has no sum;
///           CommError as Communicator. All but the last before anything is sent.
///
/// R -> I is legal, but n-1 ranks send zeros back: prefer P -> I or S -> I.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to,
                        const Call& call = {});

/// Redistributes one axis after another from `layout` to `to`: steps that shrink the piece first, steps that grow it
/// last. If two dims swap axes, one axis goes through R. Works between any two layouts. Throws LayoutError if they do
/// not name the same axes.
at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const Layout& to, const Mesh& mesh,
                        const Call& call = {});

/// Bytes this rank sends for redistribute(x, layout, axis, to) with x of `local_shape`, as the record back-end counts.
/// Throws as redistribute.
int64_t redistribute_bytes(const std::vector<int64_t>& local_shape, int64_t element_bytes, const Placement& from,
                           const Placement& to, const MeshAxis& axis);

/// Starts backward from a scalar loss that is I or P on every axis, with 1 on every rank.
/// Throws LayoutError if an axis is R or S (an R loss would count n times), ShapeError if the loss is not a scalar, and
/// UsageError if it does not require a gradient.
void backward(const at::Tensor& loss, const Layout& layout);

}  // namespace caravan
