#pragma once

#include <string>

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"

namespace caravan {

struct Tensor1dOptions {
  std::string axis = "tp";
  /// Also splits norms, dropout and the residual stream, over the sequence.
  bool sequence = false;
};

/// Tensor parallelism in one dimension: each layer of a model is split over an axis, by columns and then by rows.
/// (Shoeybi et al., "Megatron-LM", arXiv 1909.08053; with `sequence`: Korthikanti et al., "Reducing activation
/// recomputation in large transformer models", arXiv 2205.05198.)
///
///   columns  query, key, value, up, gate: x I -> R, weight and bias S(0), y S(features): whole heads
///   rows     output, down: x S(features), weight S(1), y P -> I; the bias is added once (I -> P)
///   words    embedding and head S(0) over the vocabulary, in parts that differ by a row at most; the loss combines
///            maximum and sums of each token's softmax, so no rank holds logits of the whole vocabulary
///   sequence stream S(1): into a layer S(1) -> R, out of it P -> S(1); norms and positions are unsharded R
///   sends    for each layer and micro-batch of n elements of the stream: 2 all-reduces in forward and 2 in backward,
///            8(t-1)/t n; with `sequence` as much, as all-gathers and reduce-scatters
///   memory   weights 1/t, norms and row biases whole; activations inside layers 1/t, with `sequence` the stream too;
///            inputs of columns are kept as they are gathered
///
/// With fewer key/value heads than ranks, groups of ranks hold the same ones: the axis is factored into AXIS_kv and
/// AXIS_group, which the plan uses instead. `mesh` then gets these axes, on every rank.
///
/// If the degree does not divide the heads, ranks have whole groups of heads that share keys, one more or less. The MLP
/// is cut equally nevertheless: it ends with a sum of its own, in which all wait for the rank with most of it.
///
/// Throws UsageError for a degree that exceeds these groups and does not divide the heads, or that exceeds the width of
/// the MLP or the vocabulary, naming those that work.
Plan tensor_1d(const ModelConfig& config, Mesh& mesh, const Tensor1dOptions& options = {});

}  // namespace caravan
