#include "tests/cost/formulas/memory.h"

#include <algorithm>

#include "caravan/schedule/pipeline_schedule.h"
#include "caravan/schedule/stages.h"
#include "tests/cost/formulas/tensor.h"

namespace caravan {
namespace {

int64_t depth_of(const Split& tensor) { return tensor.kind.reads("depth") ? tensor.kind.whole("depth") : 1; }

/// Ranks that exchange sequence for heads, and that pass keys and values on.
int64_t num_ulysses(const Split& context) { return context.parts().heads; }
int64_t num_ring(const Split& context) { return context.degree / num_ulysses(context); }

/// The sizes of a model as reals: of a rank's part of a micro-batch, and inside its layers.
struct Sizes {
  explicit Sizes(const MemoryShape& shape)
      : tokens(shape.tokens() / static_cast<double>(shape.row_parts() * shape.context_parallel.degree)),
        element(static_cast<double>(shape.compute_bytes)),
        parts(static_cast<double>(shape.tensor_parallel.parts().heads)),
        width(static_cast<double>(shape.model.width)),
        hidden(static_cast<double>(shape.model.hidden_width()) / parts),
        heads(static_cast<double>(shape.model.heads) / parts),
        mlp_tensors(!shape.model.arch.is_gated ? 2 : 3),
        has_experts(shape.model.moe.is_used()),
        chosen(has_experts ? static_cast<double>(shape.model.moe.top_k) : 1),
        copies(chosen * taken_share(shape.model.moe)),
        shared(static_cast<double>(shape.model.moe.shared_hidden) / parts) {}

  double tokens;
  double element;  ///< bytes
  double parts;    ///< in which heads, MLP and vocabulary are split
  double width;    ///< whole
  double hidden;
  double heads;
  double mlp_tensors;  ///< of the hidden width that the MLP keeps
  bool has_experts;
  double chosen;  ///< experts of a token
  double copies;  ///< of a token, in the MLPs
  double shared;  ///< width of the shared expert
};

/// Elements of the embedding, or of an untied head.
double table_elements(const TensorShape& ranks) {
  return words_weight_elements(ranks) / (ranks.model.tie_embeddings ? 1 : 2);
}

/// What a rank has of everything but the layers.
double words_elements(const TensorShape& ranks, const ModelPart& part) {
  const bool is_gpt2 = !ranks.model.arch.is_gated;
  const double vectors = outer_weight_elements(ranks) - words_weight_elements(ranks);  // positions and final norm
  const double norm = is_gpt2 ? 2 / (static_cast<double>(ranks.model.context) + 2) : 1;
  double elements = 0;
  if (part.has_embedding) elements += table_elements(ranks) + (1 - norm) * vectors;
  if (part.has_head) elements += norm * vectors + (ranks.model.tie_embeddings ? 0 : table_elements(ranks));
  return elements;
}

/// PipeDream: those that micro-batches in flight have read, and the newest; one is made before another is free
/// (Narayanan et al., SOSP 2019). Of PipeDream-2BW two (ICML 2021), and the same.
int64_t versions_of(const PipelineChoice& pipeline, int64_t rank) {
  if (!pipeline.has_windows()) return 0;
  const bool of_each = schedule_of(pipeline).updates == PipelineSchedule::Updates::each_micro_batch;
  return of_each ? std::max<int64_t>(pipeline.degree - rank, 2) : 3;
}

/// Turns the state of a whole model into that of one of the ranks that split its layers.
void split(StateShape& state, const MemoryShape& shape) {
  const Split& choice = shape.tensor_parallel;
  state.copies = {num_ring(shape.context_parallel), num_ulysses(shape.context_parallel)};
  if (choice.is_used()) state.copies.push_back(depth_of(choice));
  state.dense_copies = shape.expert_parallel.degree;
  if (!choice.is_used() && !shape.expert_parallel.is_used()) return;
  const TensorShape ranks = tensor_shape(shape);
  const auto layers = static_cast<double>(shape.part.layers_of(shape.model));
  const double all_experts = expert_elements(shape.model);
  const double experts = expert_weight_elements(expert_shape(shape));
  const double dense = layer_weight_elements(ranks) - all_experts / static_cast<double>(choice.degree);
  const double words = words_elements(ranks, shape.part);
  const double adapters = shape.model.lora.is_used() ? state.trained() : 0;  // small: as if they were not split
  const double dense_part = (layers * dense + words) / (state.parameters - layers * all_experts);
  state.experts = shape.model.lora.is_used() ? 0 : layers * experts;
  state.parameters = layers * (dense + experts) + words + adapters;
  if (shape.model.lora.is_used()) state.frozen = state.parameters - adapters;
  const double table = table_elements(ranks);
  if (state.shared_words > 0) state.shared_words = table;
  state.largest_unit = std::max(table, dense + experts);
  for (HookMatrix& matrix : state.matrices) {
    matrix.rows *= matrix.is_of_experts ? experts / all_experts : dense_part;
  }
}

}  // namespace

TensorShape tensor_shape(const MemoryShape& shape) {
  const Split& choice = shape.tensor_parallel;
  return {.model = shape.model,
          .kind = choice.kind.name(),
          .ranks = choice.degree,
          .depth = depth_of(choice),
          .sequence = choice.parts().stream > 1,
          .recompute = shape.num_recomputed > 0,
          .sequences = shape.sequences,
          .element_bytes = shape.compute_bytes,
          .share = 1 / static_cast<double>(shape.context_parallel.degree * shape.expert_parallel.parts().rows)};
}

std::vector<TensorShape> context_shapes(const MemoryShape& shape) {
  const Split& choice = shape.context_parallel;
  const int64_t others =
      shape.tensor_parallel.parts().heads * shape.tensor_parallel.parts().rows * shape.expert_parallel.parts().rows;
  std::vector<TensorShape> shapes;
  const auto add = [&](const char* kind, int64_t ranks, int64_t other_ranks) {
    if (ranks == 1) return;
    shapes.push_back({.model = shape.model,
                      .kind = kind,
                      .ranks = ranks,
                      .recompute = shape.num_recomputed > 0,
                      .sequences = shape.sequences,
                      .element_bytes = shape.compute_bytes,
                      .share = 1 / static_cast<double>(others * other_ranks)});
  };
  add("ring", num_ring(choice), num_ulysses(choice));
  add("ulysses", num_ulysses(choice), num_ring(choice));
  return shapes;
}

ExpertShape expert_shape(const MemoryShape& shape) {
  ExpertShape experts{.model = shape.model,
                      .ranks = shape.expert_parallel.degree,
                      .tensor_ranks = shape.tensor_parallel.degree,
                      .sequences = shape.sequences,
                      .element_bytes = shape.compute_bytes,
                      .recompute = shape.num_recomputed > 0};
  for (const int64_t degree : {num_ring(shape.context_parallel), num_ulysses(shape.context_parallel)}) {
    if (degree > 1) experts.context_axes.push_back(degree);
  }
  return experts;
}

StateShape state_of(const MemoryShape& shape) {
  StateShape state{.choice = shape.data_parallel,
                   .ranks = shape.ranks,
                   .shares_memory = shape.shares_memory,
                   .compute_bytes = shape.compute_bytes,
                   .gradient_bytes = shape.gradient_bytes,
                   .reduce_bytes = shape.reduce_bytes,
                   .num_moments = shape.num_moments,
                   .num_micro_batches = shape.rows / shape.sequences,
                   .num_versions = shape.num_versions};
  state.count(shape.model, shape.part);
  split(state, shape);
  return state;
}

double state_bytes(const MemoryShape& shape) { return state_bytes(state_of(shape)).total(); }

double layer_activation_bytes(const MemoryShape& shape) noexcept {
  const Sizes s(shape);
  // Mean and reciprocal deviation of both norms, and the log-sum-exp of each head, in fp32.
  const double statistics = 4 * s.tokens * (4 + s.heads);
  return s.element * layer_activation_elements(tensor_shape(shape)) + statistics + routing_bytes(expert_shape(shape));
}

double selective_activation_bytes(const MemoryShape& shape) noexcept {
  const Sizes s(shape);
  return s.element * layer_activation_elements(tensor_shape(shape)) + 4 * 4 * s.tokens +
         routing_bytes(expert_shape(shape));
}

double full_activation_bytes(const MemoryShape& shape) noexcept {
  const Sizes s(shape);
  const Split& choice = shape.tensor_parallel;
  const bool splits_stream = choice.parts().stream * choice.parts().widths > 1;
  return s.element * s.tokens * s.width / (splits_stream ? s.parts : 1);
}

double kept_activation_bytes(const MemoryShape& shape) noexcept {
  const auto layers = static_cast<double>(shape.model.layers - shape.num_recomputed - shape.num_recomputed_cores);
  const double all = layers * layer_activation_bytes(shape) +
                     static_cast<double>(shape.num_recomputed) * full_activation_bytes(shape) +
                     static_cast<double>(shape.num_recomputed_cores) * selective_activation_bytes(shape);
  const double part = static_cast<double>(shape.part.layers_of(shape.model)) /
                      static_cast<double>(std::max<int64_t>(shape.model.layers, 1));
  return all * part * shape.in_flight + static_cast<double>(shape.stage_inputs) * full_activation_bytes(shape);
}

void count_recomputed(MemoryShape& shape, const std::string& recompute) {
  shape.num_recomputed = recompute == "full" ? shape.model.layers : 0;
  shape.num_recomputed_cores = recompute == "selective" ? shape.model.layers : 0;
}

std::vector<MemoryShape> shapes_of_ranks(const MemoryShape& shape) {
  if (!shape.pipeline.is_used()) return {shape};
  const std::vector<int> stages = stage_of_units(shape.pipeline, shape.model, unit_flops(shape.model));
  int64_t num_micro_batches = shape.rows / shape.sequences;
  // Micro-batches of several steps are in flight.
  if (shape.pipeline.has_windows()) num_micro_batches = std::max(num_micro_batches, shape.pipeline.degree);
  const PipelineOrder order =
      pipeline_order(shape.pipeline, static_cast<int>(num_micro_batches), shape.recomputes_stages);
  const std::vector<HeldActivations> held = held_activations(order);
  std::vector<MemoryShape> ranks(order.ranks.size(), shape);
  for (MemoryShape& rank : ranks) rank.part = {0, false, false};
  for (size_t unit = 0; unit < stages.size(); ++unit) {
    ModelPart& part = ranks[static_cast<size_t>(order.rank_of_stage[static_cast<size_t>(stages[unit])])].part;
    if (unit == 0) part.has_embedding = true;
    if (unit + 1 == stages.size()) part.has_head = true;
    if (unit > 0 && unit + 1 < stages.size()) ++part.layers;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto stages_here = static_cast<double>(std::ranges::count(order.rank_of_stage, static_cast<int>(rank)));
    ranks[rank].in_flight = static_cast<double>(held[rank].activations) / stages_here;
    ranks[rank].stage_inputs = held[rank].inputs;
    ranks[rank].num_versions = versions_of(shape.pipeline, static_cast<int64_t>(rank));
  }
  return ranks;
}

}  // namespace caravan
