#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/engine/engine.h"

namespace caravan {

/// Whether the unsharded parameters of a unit are stored once, in memory shared by the ranks of an axis, so that a
/// gather copies nothing.
enum class Share : uint8_t { automatic, on, off };

/// Where the gradients of several micro-batches accumulate: in the sharded layout, with a reduction in every
/// micro-batch, or in the unsharded layout, with one reduction a step.
enum class Accumulate : uint8_t { sharded, full };

/// Optimizer state is sharded over an axis (stage 1), and gradients too (stage 2); every rank has all parameters.
/// (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.)
///
///   sharded S(0; rows) -> unsharded R, gathered once a step, its memory kept; gradient P -> S
///   sends (n-1)/n x (bytes of the gradients + bytes of the unsharded parameters) a step; stage 2 with
///   Accumulate::sharded reduces gradients once for each micro-batch
///
/// Bytes for each parameter over n ranks, with AdamW:
///                    fp32 compute   bf16 compute
///   stage 1          8 + 8/n        6 + 12/n
///   stage 2          4 + 12/n       2 + 16/n      and the gradients of three units at most
///   shared memory    4 less for each rank, 4/n more (fp32); 2 less, 2/n more (bf16)
///
/// Groups of parameters, one for each unit, are cut at rows into parts that are equal up to a row.
struct ZeroOptions {
  int stage = 1;
  std::string axis = "dp";
  /// Modules inside the blocks of the model that become separate units, by pattern (* stands for any characters).
  std::vector<std::string> units{};
  int prefetch = 1;                        ///< number of units gathered ahead in forward
  std::optional<Accumulate> accumulate{};  ///< default: full in stage 1, sharded in stage 2
  Share share = Share::automatic;
  at::ScalarType compute_dtype = at::kFloat;  ///< this and the next two: as in DdpOptions
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  bool find_unused_parameters = false;
  Buffers buffers = Buffers::broadcast;
};

/// Parameters, gradients and optimizer state are sharded over an axis: ZeRO-3. A unit is gathered before its forward,
/// freed after it, gathered again before its backward, and its gradients are reduced to shards.
/// (Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.)
///
///   sharded S(0; rows) -> unsharded R before use; gradient P -> S
///   sends for each micro-batch (n-1)/n x (bytes of the gradients + twice those of the unsharded parameters), once
///   without reshard_after_forward (then unsharded parameters stay for the whole step)
///   memory: 16/n bytes a parameter with AdamW, and the unsharded parameters and gradients of a few units. In shared
///   memory units are never freed, and gathers copy nothing: 16/n, with bf16 compute 18/n
///
/// With `replicate_axis` it is HSDP: sharded over `axis`, replicated over the other; gradients are reduced to shards,
/// then all-reduced between the replicas, once a step: 2(r-1)/r x (bytes of the shard) over r replicas.
struct FsdpOptions {
  std::string axis = "dp";
  std::string replicate_axis{};
  std::vector<std::string> units{};
  bool reshard_after_forward = true;
  int prefetch = 1;
  Accumulate accumulate = Accumulate::sharded;
  Share share = Share::automatic;
  at::ScalarType compute_dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  std::shared_ptr<CommHook> hook{};  ///< of the all-reduces over replicate_axis
  bool find_unused_parameters = false;
  Buffers buffers = Buffers::broadcast;
};

/// Throw UsageError for an impossible option, LayoutError if sharded parameters are not I on the axis.
Strategy zero(Module& model, const Mesh& mesh, const ZeroOptions& options = {});
Strategy fsdp(Module& model, const Mesh& mesh, const FsdpOptions& options = {});
/// Adds it to what other techniques have decided.
void add_zero(Strategy& strategy, const Mesh& mesh, const ZeroOptions& options = {});
void add_fsdp(Strategy& strategy, const Mesh& mesh, const FsdpOptions& options = {});

/// Engines with these strategies.
class Zero final : public Engine {
 public:
  Zero(Module& model, const Mesh& mesh, const ZeroOptions& options = {})
      : Engine(model, mesh, zero(model, mesh, options)) {}
};
class Fsdp final : public Engine {
 public:
  Fsdp(Module& model, const Mesh& mesh, const FsdpOptions& options = {})
      : Engine(model, mesh, fsdp(model, mesh, options)) {}
};

}  // namespace caravan
