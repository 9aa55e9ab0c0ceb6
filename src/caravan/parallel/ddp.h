#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/bucket.h"
#include "caravan/engine/flat.h"
#include "caravan/module/gradients.h"
#include "caravan/module/module.h"

namespace caravan {

struct DdpOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  /// Layers compute with a copy of the parameters in this dtype, made once a step (fp32 masters rest); kFloat: with the
  /// parameters themselves, whatever they are, and all that a user's own module can do. fp32 or bf16.
  at::ScalarType compute_dtype = at::kFloat;
  /// A parameter that took no part in a step counts as zero; else it is an error that names it.
  bool allow_unused = false;
};

/// Distributed data parallel: every rank of an axis holds the whole model and a part of the batch.
/// (Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.)
///
///   at rest I -> in compute R; gradient P -> I, one all-reduce per bucket, in the last backward of a step
///   sends 2(n-1)/n x (bytes of the fp32 gradients) a step; at construction (n-1)/n x (parameters and buffers)
///   memory: parameters, gradients (both flat), and with bf16 a copy of 2 bytes a parameter
///
/// One step, on every rank: begin_step(); any number of forwards and backwards, arm() before the last backward;
/// finish_step(); then gradients() are the sums over all ranks, on every rank the same bits. A sum, not a mean: divide
/// the loss by the global count (ForwardContext::loss_scale). Works for models of this library and for a user's
/// torch::nn::Module (module/adapter.h), whose parameters then have .grad set.
class Ddp {
 public:
  /// Every rank of `axis` calls it with the same, materialised model; parameters and buffers become those of coordinate
  /// 0. Throws LayoutError if a parameter does not rest invariant on `axis`; UsageError for an option that does not
  /// work, and on every rank if names, shapes, dtypes or options differ between ranks.
  Ddp(Module& model, const MeshAxis& axis, const DdpOptions& options = {});
  ~Ddp();

  /// Forgets the gradients of the step before and refreshes the compute copies.
  void begin_step();
  /// Makes the compute copies equal to the parameters at rest: before an evaluation after the last update.
  void refresh_compute_copies();
  /// The next backward is the last one of the step: its gradients travel while it runs.
  void arm() { buckets_->arm(); }
  /// Waits for one bucket; in their order. What a schedule's reduce actions call.
  void finish(const Bucket& bucket);
  /// Waits for all buckets and sets .grad of every parameter at rest to its view of the gradients.
  void finish_step();

  FlatState& state() noexcept { return state_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_->buckets(); }

 private:
  void broadcast_from_coordinate_0(Module& model);
  void make_compute_copies(Module& model);
  void check_all_used() const;

  MeshAxis axis_;
  DdpOptions options_;
  FlatState state_;
  at::Tensor compute_values_;  ///< flat, of compute_dtype, if that is not the rest dtype
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<GradientDispatcher> dispatcher_;
};

}  // namespace caravan
