#pragma once

#include "caravan/engine/flat.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// The 2-norm of the gradient of the whole model, from placements alone: square locally, S -> P and I -> P (coordinate
/// 0 counts), one scalar all-reduce over the world. The same bits on every rank.
///
/// Every rank of `mesh` calls it. `state.gradients` are laid out as the parameters at rest. Where every axis is
/// invariant for every parameter the local sum is the global one and nothing is sent; else 8 bytes are all-reduced.
/// Throws LayoutError for a parameter that rests in R or P: its gradient's debt is not paid.
double grad_norm(const FlatState& state, const Mesh& mesh);

/// Scales the gradients so that their norm is at most `max_norm`; `norm` is grad_norm of them. max_norm <= 0: leaves
/// them.
void clip_grad_norm(FlatState& state, double norm, double max_norm);

}  // namespace caravan
