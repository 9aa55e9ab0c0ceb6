#pragma once

#include <cstdint>
#include <vector>

#include "caravan/nn/config.h"
#include "tests/cost/formulas/tensor.h"

namespace caravan {

/// The weights of a layer except attention and norms, in elements: one MLP, or a mixture of experts. Tensor parallelism
/// 1d splits some of them; all its ranks have the others.
struct FeedElements {
  double split_matrices = 0;  ///< of the MLP, or of experts and the shared expert
  double whole_matrices = 0;  ///< of the router, and the gate of the shared expert
  double split_biases = 0;
  double whole_biases = 0;
};

/// With u = 1 matrix up (GPT-2) or 2 with a gate (Llama), E experts of width f, a shared one of width r:
///   an MLP       (u+1) h f;  GPT-2 has biases f + h
///   a mixture    (u+1) h (E f + r), E h of the router, h of the shared gate;  biases E (f + h) and r + h
FeedElements feed_elements(const ModelConfig& model);

/// The elements of all experts of a layer, including biases; 0 without a mixture.
double expert_elements(const ModelConfig& model);

/// The fraction of the copies of tokens that experts take: all of them, or less with a capacity below 1.
double taken_share(const MoeConfig& moe);

/// Elements of the arithmetic's dtype that autograd keeps of it for each token; `parts` ranks split it as 1d does.
///   an MLP       (u+1) f / parts
///   a mixture    E scores; k h of what comes back from the experts; of k copies / parts, of which experts take the
///                share above, h + (u+1) f each; of the shared expert (u+1) r / parts, and h + 1 if it has a gate
double feed_activation_elements(const ModelConfig& model, double parts);

/// The experts of the layers of a model, over some ranks. All experts are assumed to be chosen by equally many tokens,
/// so that all ranks send, receive, keep and compute the same. Real loads differ; train.log has them.
struct ExpertShape {
  ModelConfig model;
  int64_t ranks = 1;                    ///< among which tokens and experts are split: mesh.ep
  int64_t tensor_ranks = 1;             ///< of 1d: they have the same tokens, and split each rank's experts
  std::vector<int64_t> context_axes{};  ///< degrees of the axes that split sequences
  int64_t sequences = 1;                ///< of a micro-batch, over all these ranks; each of model.context tokens
  int64_t element_bytes = 2;            ///< of the arithmetic: fp32 4, bf16 2
  bool recompute = false;               ///< layers are recomputed in backward

  double tokens() const noexcept;   ///< of a rank in a micro-batch
  double experts() const noexcept;  ///< number of experts of a layer on a rank
  /// Copies of tokens for an expert in a micro-batch: T k / E for the T tokens that reach it.
  double copies_per_expert() const noexcept;
};

/// Elements of the experts of one layer on a rank: 1 / (ranks x tensor_ranks) of them.
double expert_weight_elements(const ExpertShape& shape);

/// Bytes that a layer keeps for routing in addition to feed_activation_elements, in fp32 and int64. For a token with k
/// copies: 12 k for the chosen experts and their gates, 8 k for the destinations of the copies, and 8 for each copy
/// that a rank sends or computes; with several ranks, 16 for each copy that it receives. With a balance loss, also the
/// shares of the experts in each sequence, 4 E.
double routing_bytes(const ExpertShape& shape);

/// Bytes that a rank sends for the experts of a layer in a micro-batch. With n ranks, and x bytes of the copies of its
/// tokens, k h elements each, of which one tensor rank has 1 / tensor_ranks:
///   forward    2 (n-1)/n x: to the experts, and back; and (n-1)/n 8 E / tensor_ranks of counts
///   backward   2 (n-1)/n x: the gradients go the same ways (GShard, arXiv 2006.16668, section 3.2)
/// Each axis of m ranks that splits sequences all-reduces what is counted in a sequence, in fp32: 2 (m-1)/m 4 E with
/// BalanceScope::sequence, and 2 (m-1)/m 4 s k with a capacity. With recompute backward sends what forward does once
/// more.
TensorTraffic expert_bytes(const ExpertShape& shape);

/// What moe.balance = "batch" sends once a step for all layers: an all-reduce of 8 E bytes a layer over `world` ranks.
/// It also costs a forward pass of the whole step, with what layers send in it.
double balance_bytes_per_step(const ModelConfig& model, int64_t world);

}  // namespace caravan
