#pragma once

#include "caravan/engine/flat.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// The 2-norm of the gradient of the whole model, from placements alone: square locally, S -> P and I -> P (coordinate
/// 0 counts), then all-reduce one scalar over the world. Every rank gets the same bits, also where processors or
/// numbers of threads differ.
///
/// Every rank of `mesh` calls it. `state.gradients` are laid out as the parameters at rest. All-reduces 8 bytes.
double grad_norm(const FlatState& state, const Mesh& mesh);

/// What the gradients must be multiplied by so that their norm is at most `max_norm`: Optimizer::step takes it. `norm`
/// is their grad_norm. 1 if max_norm <= 0.
double clip_scale(double norm, double max_norm);
/// The same in place, for an optimizer that takes no scale.
void clip_grad_norm(FlatState& state, double norm, double max_norm);

}  // namespace caravan
