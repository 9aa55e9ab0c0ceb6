#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Tensor parallelism in three dimensions: both operands of each product, and its result, are split over all axes of a
/// cube of q x q x q ranks. (Bian et al., "Maximizing parallelism in distributed training for huge neural networks",
/// arXiv 2105.14450; Agarwal et al., "A three-dimensional approach to parallel matrix multiplication", 1995.)
///
///   stream   a=S(batch) b=S(batch) c=S(features)
///   inside   of attention and MLP a=S(batch) c=S(batch) b=S(features): whole sequences and whole heads
///   weights  into attention and MLP b=S(0) c=S(1) a=S(1), back to the stream c=S(0) b=S(1) a=S(1). A product gathers x
///            over b (c) and W over a, and scatters the sums over c (b): each layer swaps b and c, two swap them back
///   vectors  biases and norms are split over the axis of their features, and are unsharded R on the two others
///   norms    two sums a token, P -> R on c
///   words    embedding and head b=S(0) over the vocabulary, in parts that differ by at most a row; sharded c=S(1)
///            a=S(1). The head is gathered over a and c once a step, and its input moves to a=S(batch) c=S(batch), so
///            that logits are never summands; a separate embedding is gathered over a alone
///   sends    for a layer and micro-batch of b sequences of s tokens (q-1)/q^3 (16bsh + 12h^2) elements in forward and
///            (q-1)/q^3 (23bsh + 24h^2) in backward (GPT-2)
///   memory   weights and activations 1/q^3; during a product 1/q^2 of each operand; head 1/q, embedding 1/q^2
///
/// Throws UsageError for axes of different sizes, and for a side that does not divide the heads, and heads of keys and
/// values, or whose square does not divide the widths of model and MLP, naming those that do. A micro-batch is a
/// multiple of q^2 sequences.
Plan tensor_3d(const ModelConfig& config, const MeshAxis& a, const MeshAxis& b, const MeshAxis& c);

}  // namespace caravan
