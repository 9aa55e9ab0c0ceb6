#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Tensor parallelism in two and a half dimensions: a q x q grid (tensor_2d.h), `depth` times, each with a part of the
/// batch. (Wang, Xu, Bian, You: "Tesseract: parallelize the tensor parallelism efficiently", arXiv 2105.14500.)
///
///   activations  those of 2D, depth=S(batch)
///   parameters   those of 2D, depth sharded I and unsharded R: depth is a data axis, which a data-parallel technique
///                may shard
///   sends        for a layer and micro-batch (q-1)/q^2 (7bsh/d + 12h^2) elements in forward, twice that in backward,
///                and the all-reduce of its gradients over depth once a step
///   memory       weights 1/q^2, activations 1/(d q^2)
///
/// Throws as tensor_2d. A micro-batch is a multiple of d q sequences.
Plan tensor_25d(const ModelConfig& config, const MeshAxis& depth, const MeshAxis& row, const MeshAxis& col);

}  // namespace caravan
