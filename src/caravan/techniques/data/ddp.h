#pragma once

#include <memory>
#include <optional>
#include <string>

#include "caravan/engine/bucket_bytes.h"
#include "caravan/engine/engine.h"

namespace caravan {

struct DdpOptions {
  std::string axis = "dp";
  /// Gradients of neighbouring units are all-reduced together, in collectives of at least this size; the first one of
  /// a step may be smaller, so that communication starts early.
  int64_t bucket_bytes = kBucketBytes;
  int64_t first_bucket_bytes = kFirstBucketBytes;
  /// Layers compute with a copy of the parameters in this dtype, made once a step (the sharded parameters are fp32);
  /// kFloat: with the parameters themselves, of any dtype. fp32, bf16, or fp16 with a LossScale.
  at::ScalarType compute_dtype = at::kFloat;
  /// Dtype in which gradients are kept and reduced: see Strategy.
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  /// Sums gradients instead of all-reduces (techniques/compression/power_sgd.h, top_k.h, compress_hook.h); null: none.
  /// One object for each engine, of the same kind on every rank.
  std::shared_ptr<CommHook> hook{};
  /// A parameter that is not used in a step counts as zero; else it is an error that names it.
  bool find_unused_parameters = false;
  /// Every step runs the same units in the same order, on every rank (PyTorch's static_graph). false: the units that
  /// run, and their order, may differ from step to step and between ranks. Then nothing is reduced before
  /// finish_step(), find_unused_parameters concerns parameters that no rank used, and 8 more bytes per parameter are
  /// all-reduced a step.
  bool static_graph = true;
  Buffers buffers = Buffers::broadcast;
};

/// Distributed data parallel: every rank of an axis holds the whole model and a part of the batch.
/// (Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.)
///
///   sharded I -> unsharded R; gradient P -> I, one all-reduce for each bucket, in the last backward of a step
///   sends 2(n-1)/n x (bytes of the fp32 gradients) a step; at construction (n-1)/n x (parameters and buffers)
///   memory: parameters, gradients (both flat), and with bf16 a copy of 2 bytes a parameter
///
/// Works for models of this library and for a user's torch::nn::Module (module/adapter.h), whose own optimizer keeps
/// working: its tensors are the unsharded parameters and, in fp32, the sharded ones.
Strategy ddp(Module& model, const Mesh& mesh, const DdpOptions& options = {});
/// Adds it to what other techniques have decided.
void add_ddp(Strategy& strategy, const Mesh& mesh, const DdpOptions& options = {});

/// An engine with this strategy.
class Ddp final : public Engine {
 public:
  Ddp(Module& model, const Mesh& mesh, const DdpOptions& options = {})
      : Engine(model, mesh, ddp(model, mesh, options)) {}
};

}  // namespace caravan
