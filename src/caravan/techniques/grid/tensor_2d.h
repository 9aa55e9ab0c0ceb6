#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Tensor parallelism in two dimensions: every matrix of a model, and its activations, is split over both axes of a
/// square of q x q ranks. (Xu et al., "An efficient 2D method for training super-large deep learning models" (Optimus),
/// arXiv 2104.05343; van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm", 1997.)
///
///   activations  row=S(batch) col=S(features), of which attention has whole sequences and whole heads
///   weights      col=S(0) row=S(1): rank (i, j) has [out_j, in_i]. A product gathers both operands in q panels: x over
///                col, W over row; its backward gathers them again and reduces the gradients of each panel to its owner
///   vectors      col=S(0) row=I, unsharded R on row: their gradients are summed over it once a step
///   norms        two sums a token, P -> R on col
///   words        embedding and head col=S(0) over the vocabulary, in parts that differ by at most a row; sharded
///                row=S(1), unsharded R on row: gathered once a step. The loss combines statistics over col
///   sends        for a layer and micro-batch of b sequences of s tokens (q-1)/q^2 (7bsh + 12h^2) elements in forward
///                and twice that in backward (GPT-2)
///   memory       weights and activations 1/q^2, and two panels; head and embedding 1/q
///
/// Throws UsageError for axes of two sizes, and for a side that does not divide the heads, heads of keys and values and
/// widths of the model, naming those that do. A micro-batch is a multiple of q sequences.
Plan tensor_2d(const ModelConfig& config, const MeshAxis& row, const MeshAxis& col);

}  // namespace caravan
