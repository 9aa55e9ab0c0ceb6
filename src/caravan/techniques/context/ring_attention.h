#pragma once

#include <cstdint>
#include <functional>

#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/techniques/context/ring_order.h"

namespace caravan {

/// How a core computes in a pass: its scores, whose bias is that of all distances of the sequence and whose positions
/// the ring sets, and how many keys up to its own a query sees (0: all).
struct CoreScores {
  Scores scores;
  int64_t window = 0;
};
/// `inputs` are q, k and v of this rank, `keys` those of the whole sequence.
using ScoresOfCore =
    std::function<CoreScores(const Module& core, const Tensors& inputs, int64_t keys, const ForwardContext& context)>;
/// Those of an AttentionCore; plain ones for another module.
CoreScores scores_of_core(const Module& core, const Tensors& inputs, int64_t keys, const ForwardContext& context);

/// A hook around AttentionCore (nn/attention/attention.h): each rank of `axis` has queries, keys and values of its part
/// of the sequence, as `order` deals it out. Queries stay; keys and values go around the ring, and the attention to
/// each block is merged with that to the others (Liu et al., "Ring attention with blockwise transformers for
/// near-infinite context", ICLR 2024). The next block is in flight while one is computed, in forward and backward.
///
///   shapes  {q, k, v} of AttentionCore, fp32, fp64, bf16 or fp16; context.documents: of the tokens of this rank
///   sends   x = bytes of k and v, g = bytes of their gradients in fp32 (fp64), n = axis.size(): (n-1) x in forward,
///           (n-1) x + n g in backward; with documents also (n-1) x 8 bytes a token
///   memory  two blocks of k and v; in backward also two of their gradients
///   grad    of q, k and v; those of k and v are summed in fp32 (fp64) around the ring. Collective, as forward
///   throws  UsageError if the tokens of this rank are not its part of the order; in a dry run LayoutError
///           unless q, k and v are laid out alike, with the sequence split over `axis` alone
///
/// With documents, attention stays within a document, with a window within it; blocks that no query of this rank sees
/// are skipped. The gradient of a bias is that by the queries of this rank: P on the axis.
///
/// With dropout of attention weights, keys and values are gathered (S -> R) and the core uses the random numbers of one
/// process.
///
/// With Phase::generate, and on one rank, it does nothing.
///
/// `schedule`: the steps of every rank; tests pass wrong ones. `scores`: called in every pass.
Around ring_attention(const MeshAxis& axis, RingSchedule schedule = checked_ring_schedule,
                      const RingOrder& order = zigzag(), ScoresOfCore scores = scores_of_core);

}  // namespace caravan
