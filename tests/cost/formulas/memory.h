#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/nn/config.h"
#include "caravan/registry/split.h"
#include "caravan/schedule/pipeline_choice.h"
#include "tests/cost/formulas/experts.h"
#include "tests/cost/formulas/state.h"
#include "tests/cost/formulas/tensor.h"

namespace caravan {

/// What one rank keeps and computes in a training step under data parallelism.
struct MemoryShape {
  ModelConfig model;      ///< with its vocabulary
  int64_t sequences = 1;  ///< of a micro-batch
  int64_t rows = 1;       ///< sequences of this rank in a step
  Split tensor_parallel{Setting("tensor_parallel")};
  Split context_parallel{Setting("context_parallel")};
  Split expert_parallel{Setting("expert_parallel")};
  PipelineChoice pipeline{};
  ModelPart part{};      ///< that this rank of a pipeline has
  double in_flight = 1;  ///< micro-batches in flight with all activations
  bool recomputes_stages = false;
  int64_t num_versions = 0;    ///< see StateShape
  int64_t stage_inputs = 0;    ///< micro-batches in flight of stages that keep only their input
  int64_t compute_bytes = 4;   ///< of an element of the layers' arithmetic: fp32 4, bf16 2
  int64_t gradient_bytes = 4;  ///< see StateShape
  int64_t reduce_bytes = 4;
  int64_t num_moments = 2;  ///< fp32 values the optimizer keeps for each parameter
  DataParallelChoice data_parallel{};
  int64_t ranks = 1;                 ///< data-parallel
  bool shares_memory = false;        ///< see StateShape
  bool copies_checkpoint = false;    ///< checkpoint.async
  int64_t num_recomputed = 0;        ///< layers that keep only their input (techniques/recompute/recompute.h)
  int64_t num_recomputed_cores = 0;  ///< other layers whose attention core keeps only its inputs

  /// The number of parts into which ranks split the sequences of a micro-batch.
  int64_t row_parts() const { return tensor_parallel.parts().rows * expert_parallel.parts().rows; }
  double tokens() const noexcept { return static_cast<double>(sequences) * static_cast<double>(model.context); }
};

// The terms, in bytes of one rank; reals, because the products of legal sizes exceed 63 bits. Symbols as in the
// literature: s context, b sequences, h width, f MLP width, V vocabulary, a heads, L layers; T = s b tokens. Each is a
// count of the tensors that the layers of nn/ really keep.

/// The ranks that split layers, as tensor.h counts what they send and hold; and those that split sequences: rings,
/// and ranks of Ulysses inside of each.
TensorShape tensor_shape(const MemoryShape& shape);
std::vector<TensorShape> context_shapes(const MemoryShape& shape);
/// The ranks that split experts, as experts.h counts them.
ExpertShape expert_shape(const MemoryShape& shape);

/// The ranks of a pipeline: which layers each has, by FLOPs if they are cut by cost, and how many micro-batches and
/// versions of its weights its schedule holds. One, the shape itself, without a pipeline.
std::vector<MemoryShape> shapes_of_ranks(const MemoryShape& shape);

/// Parameters, gradients and the optimizer's moments, by kind (state.h), of what one of these ranks has.
StateShape state_of(const MemoryShape& shape);
double state_bytes(const MemoryShape& shape);

/// What autograd keeps of one layer from forward to backward. Follows "Reducing Activation Recomputation in Large
/// Transformer Models" (arXiv 2205.05198), section 4.1, for flash attention: T (6 h + 2 f) and the keys and values for
/// GPT-2, T (6 h + 3 f) and the keys and values for Llama. With a mixture of experts, feed_activation_elements and
/// routing_bytes (experts.h) in place of T 2 f or T 3 f: experts are assumed to be chosen evenly.
double layer_activation_bytes(const MemoryShape& shape) noexcept;

/// The same for a layer whose attention core is recomputed: no log-sum-exp, but queries, keys
/// and values as the core gets them. And of a layer that is recomputed as a whole: its input, T h.
double selective_activation_bytes(const MemoryShape& shape) noexcept;
double full_activation_bytes(const MemoryShape& shape) noexcept;

/// What all layers of a rank keep, some of them recomputed, for the micro-batches in flight.
double kept_activation_bytes(const MemoryShape& shape) noexcept;

/// Counts the layers of `shape.model` that "full" or "selective" recomputes.
void count_recomputed(MemoryShape& shape, const std::string& recompute);

}  // namespace caravan
