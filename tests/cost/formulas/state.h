#pragma once

#include <cstdint>
#include <vector>

#include "caravan/nn/config.h"
#include "tests/cost/formulas/data_parallel_choice.h"

namespace caravan {

/// Matrices of one shape, as a hook compresses them.
struct HookMatrix {
  double rows = 0;
  double columns = 0;
  double count = 1;
  bool is_of_experts = false;
};

/// The part of a model that a rank of a pipeline has.
struct ModelPart {
  int64_t layers = -1;  ///< -1: all
  bool has_embedding = true;
  bool has_head = true;
  int64_t layers_of(const ModelConfig& model) const noexcept { return layers < 0 ? model.layers : layers; }
  /// Whether another rank has the head or embedding to which this rank's weight is tied: both gather it in a step.
  bool shares_words(const ModelConfig& model) const noexcept {
    return model.tie_embeddings && has_embedding != has_head;
  }
};

/// What a data-parallel technique lays out over the ranks of a run.
struct StateShape {
  DataParallelChoice choice;
  int64_t ranks = 1;  ///< data-parallel
  /// Degrees of further axes whose ranks have copies of the parameters, and all-reduce gradients over one after
  /// another: context, depth. Ranks that split experts have copies of all other parameters.
  std::vector<int64_t> copies{};
  int64_t dense_copies = 1;
  double shared_words = 0;     ///< elements of a weight that stages of a pipeline share
  double experts = 0;          ///< elements of `parameters` without dense_copies
  bool is_server = true;       ///< with servers: it is one
  bool shares_memory = false;  ///< the ranks that shard parameters can read each other's memory
  double parameters = 0;       ///< elements
  double frozen = 0;           ///< frozen ones among them, without gradient and moments
  bool keeps_frozen = false;   ///< they stay gathered where others are freed (lora.keep_frozen)
  double largest_unit = 0;     ///< elements of the unit with the most
  int64_t compute_bytes = 4;   ///< of an element in the layers' dtype: fp32 4, bf16 and fp16 2
  int64_t gradient_bytes = 4;  ///< of an element of the kept and reduced gradients
  int64_t reduce_bytes = 4;
  std::vector<HookMatrix> matrices{};  ///< with the hook powersgd
  int64_t num_moments = 2;             ///< fp32 values the optimizer keeps for each parameter
  int64_t num_micro_batches = 1;
  /// Copies of all unsharded parameters, for a stage that updates its weights while micro-batches are in flight; 0:
  /// none, or as the technique says.
  int64_t num_versions = 0;

  /// The number of ranks that gather parameters from each other, and of those among them that hold a shard.
  int64_t members() const noexcept { return !choice.is_sharded() ? 1 : choice.has_groups() ? choice.shard : ranks; }
  int64_t shards() const { return choice.holders(members()); }
  /// Sets parameters, largest_unit and matrices: the units are the embedding, each layer, the head, and a weight that
  /// the two share. The experts of a layer are one matrix, or with its gate two, up and one down.
  void count(const ModelConfig& model, const ModelPart& part = {});
  bool is_shared() const noexcept {
    return members() > 1 && shares_memory && choice.may_share() && choice.share != "off";
  }
  double trained() const noexcept { return parameters - frozen; }
  /// Whether frozen parameters are gathered once in a run: they keep their memory.
  bool gathers_frozen_once() const noexcept {
    const bool has_versions = choice.is_asynchronous();
    return !has_versions && (keeps_frozen || !choice.frees_parameters() || is_shared());
  }
  /// Whether gradients are reduced once for each micro-batch.
  bool reduces_each() const noexcept;
};

/// Bytes of one rank between steps, and the transient buffers of a step. Reals, because products of legal sizes exceed
/// 63 bits. With p parameters, n shards, k = 4 or 2 bytes to compute with, m moments:
///
///              parameters (fp32 | bf16)    gradients (g bytes)    optimizer
///   ddp        4p | 6p                     gp                     4mp
///   zero1      4p | 2p + 4p/n              gp                     4mp/n
///   zero2      4p | 2p + 4p/n              gp/n                   4mp/n
///   zero3      4p/n                        gp/n                   4mp/n
///   in memory that the n ranks share: zero1 to zero3: 4p/n | 2p/n + 4p/n
///   param_server: zero2 with k servers in place of n on a server; 4p | 2p, 0, 0 on a worker, nothing in shared memory
///     async, bounded: a server has 4p + 4p/k | 2p + 4p/k, because its unsharded parameters are a separate version
///   replicas: param_server with one server, never in shared memory
///
/// With adapters, p is all parameters in the first column, and the trained ones in the others. Frozen ones that stay
/// gathered under zero3 (keeps_frozen) take 4p | 2p + 4p/n.
///
/// Buffers of units, u elements the largest: zero2 and zero3 hold the gradients of 3 units at most, or all if they
/// accumulate in full; zero3 the unsharded parameters of 2 + prefetch units (all without reshard_after_forward). async
/// and bounded: all pushed gradients, and on a server the values and gradients in flight from and to n-1 workers.
/// Gradients that are kept or reduced in another dtype than fp32 take buffers of a unit, or of a bucket, in both. A
/// hook with error feedback keeps 4p/n, and its factors. (Rajbhandari et al., arXiv 1910.02054, section 3.)
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double hook = 0;
  double buffers = 0;
  double sharded() const noexcept { return parameters + gradients + optimizer + hook; }
  double total() const noexcept { return sharded() + buffers; }
};
StateBytes state_bytes(const StateShape& shape);

/// What one rank writes into a checkpoint: its part of parameters and moments, which replicas divide among them, and
/// its own residuals.
double checkpoint_bytes(const StateShape& shape);

/// What a rank sends in a step, but the first one of a run, the mean over ranks. `gathered` and `reduced` count
/// parameters times how often; units that stay from forward to backward make them less, a weight that two units share
/// more. Gathered bytes also count as sent over shared memory, where the other ranks read them in place.
struct StateTraffic {
  double gathered = 0;  ///< elements of whole parameters that are gathered
  double reduced = 0;   ///< elements of whole gradients that are reduced
  double elements = 0;  ///< sent; of gradients those of messages of the hook
  double bytes = 0;     ///< sent
  double busiest = 0;   ///< bytes sent by the rank that sends most: a server
};
StateTraffic state_traffic(const StateShape& shape);

}  // namespace caravan
