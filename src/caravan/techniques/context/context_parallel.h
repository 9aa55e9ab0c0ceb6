#pragma once

#include <string>

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"
#include "caravan/techniques/context/ring_order.h"

namespace caravan {

/// The axes that split sequences, by name; "": none. With both, the ring is the major one.
struct ContextParallelOptions {
  std::string ring{};      ///< passes keys and values around (techniques/context/ring_attention.h)
  std::string ulysses{};   ///< attention exchanges sequence for heads
  int64_t head_parts = 1;  ///< parts into which another plan (tensor parallelism) splits the heads already
  /// Parts into which another plan (sequence parallelism) splits the sequence of the residual stream.
  int64_t stream_parts = 1;
  RingSchedule ring_schedule = checked_ring_schedule;  ///< see ring_attention
  RingOrder ring_order = zigzag();                     ///< how the ring deals out tokens
};

/// Context parallelism as a plan for Model: each rank has a part of every sequence, also of the residual
/// stream. (Ulysses: Jacobs et al., "DeepSpeed Ulysses", 2023; ring: Liu et al., ICLR 2024; both: Fang and Zhao, "USP",
/// 2024.)
///
///   parameters  sharded I -> unsharded R: both axes are data axes
///   ids, labels, positions, documents  given whole, cut by the plan: I -> S(1). With a ring first permuted on every
///               rank, once a pass (techniques/context/ring_order.h)
///   core        ulysses: q, k, v S(1) -> S(heads), its result back; where the kv heads do not divide, k and v
///               S(1) -> R, and each rank takes its own (techniques/tensor/kv_heads.h). ring: ring_attention
///   sends       ulysses over n ranks: (n-1)/n x of q, k, v and the result, x bytes of a rank each, in forward and in
///               backward; of k and v that do not divide (n-1) x. ring: as ring_attention
///   memory      activations 1/n
///
/// In Phase::generate every rank has the whole sequence; heads stay split.
///
/// Beside a tensor plan: join(context_parallel(..), tensor plan), so that sequences are split over these axes first,
/// and heads over the other's; `mesh` has all axes of that plan.
///
/// Throws UsageError for neither axis, or the same one twice; ShapeError, naming the nearest valid choices, if the
/// degree of ulysses does not divide the heads, or 2 x ring x ulysses (without a ring: ulysses; 2 are the pieces of the
/// order) the context of the model.
Plan context_parallel(const ModelConfig& config, const Mesh& mesh, const ContextParallelOptions& options);

}  // namespace caravan
