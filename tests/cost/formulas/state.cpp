#include "tests/cost/formulas/state.h"

#include <algorithm>

#include "caravan/nn/lora.h"
#include "tests/cost/formulas/experts.h"

namespace caravan {
namespace {

constexpr double kRestBytes = 4;
constexpr double kSumBytes = 4;  ///< of the gradients of one micro-batch
/// Gradients of units that are being accumulated or are in flight (GradientSums).
constexpr double kUnitsSummed = 1;
constexpr double kUnitsInFlight = 2;

/// As PowerSgdHook: matrices whose factors are smaller.
std::vector<HookMatrix> compressed(const StateShape& shape) {
  std::vector<HookMatrix> all;
  const auto rank = static_cast<double>(shape.choice.hook_rank);
  if (shape.choice.hook != "powersgd") return all;
  for (HookMatrix matrix : shape.matrices) {
    matrix.count /= static_cast<double>(shape.shards());  // a unit is cut once: most matrices are whole
    if (rank * (matrix.rows + matrix.columns) < matrix.rows * matrix.columns) all.push_back(matrix);
  }
  return all;
}

double hook_bytes(const StateShape& shape) {
  if (!shape.choice.has_residual()) return 0;
  double factors = 0;
  for (const HookMatrix& matrix : compressed(shape)) {
    factors += static_cast<double>(shape.choice.hook_rank) * matrix.columns * matrix.count;
  }
  return kSumBytes * (shape.trained() / static_cast<double>(shape.shards()) + factors);
}

/// Elements and bytes that the all-reduces of the gradients of a step send, of p elements over `ranks` ranks.
struct AllReduced {
  double elements = 0;
  double bytes = 0;
};

/// What the all-reduces over the axes that have copies of the parameters send.
double copied_elements(const StateShape& shape) {
  const auto part = [](int64_t ranks) { return 2 * (static_cast<double>(ranks) - 1) / static_cast<double>(ranks); };
  double sent = part(shape.dense_copies) * (shape.trained() - shape.experts);
  for (const int64_t degree : shape.copies) sent += part(degree) * shape.trained();
  return sent;
}

AllReduced all_reduced(const StateShape& shape, double p, double ranks) {
  const double part = 2 * (ranks - 1) / ranks;
  if (shape.choice.hook == "topk") {
    const double chosen = (ranks - 1) * shape.choice.hook_fraction * p;
    return {chosen, 8 * chosen};
  }
  double message = p;
  for (const HookMatrix& matrix : compressed(shape)) {
    const double factors = static_cast<double>(shape.choice.hook_rank) * (matrix.rows + matrix.columns);
    message -= matrix.count * (matrix.rows * matrix.columns - factors);
  }
  return {part * message, part * message * static_cast<double>(shape.reduce_bytes)};
}

}  // namespace

void StateShape::count(const ModelConfig& whole, const ModelPart& part) {
  ModelConfig model = whole;
  model.layers = part.layers_of(whole);
  ModelConfig bare = model;
  bare.layers = 0;
  const bool is_gpt2 = !model.arch.is_gated;
  const auto width = static_cast<double>(model.width);
  const double embedding = static_cast<double>(model.vocabulary) * width;
  const double layers = static_cast<double>(model.num_parameters() - bare.num_parameters());
  parameters = layers;
  if (part.has_embedding) parameters += embedding + (is_gpt2 ? static_cast<double>(model.context) * width : 0);
  if (part.has_head) parameters += (is_gpt2 ? 2 : 1) * width + (model.tie_embeddings ? 0 : embedding);
  shared_words = part.shares_words(model) ? embedding : 0;
  largest_unit = std::max(part.has_embedding || part.has_head ? embedding : 0,
                          layers / static_cast<double>(std::max<int64_t>(model.layers, 1)));
  const auto of = [](int64_t rows, int64_t columns, int64_t count) {
    return HookMatrix{static_cast<double>(rows), static_cast<double>(columns), static_cast<double>(count)};
  };
  if (model.lora.is_used()) {
    frozen = parameters - static_cast<double>(adapter_parameters(model));
    matrices.clear();
    for (const LinearShape& layer : adapted_layers(model)) {
      matrices.push_back(of(layer.matrices() * model.lora.rank, layer.in, 1));
      matrices.push_back(of(layer.matrices() * layer.out, model.lora.rank, 1));
    }
    return;
  }
  const int64_t kv_width = model.num_kv_heads() * model.head_width();
  const int64_t ups = (is_gpt2 ? 1 : 2) * model.layers;
  const int64_t tables = std::max<int64_t>(model.moe.experts, 1);
  const int64_t words = (part.has_embedding ? 1 : 0) + (part.has_head && !model.tie_embeddings ? 1 : 0);
  matrices = {of(model.vocabulary, model.width, words),
              of(model.context, model.width, is_gpt2 && part.has_embedding ? 1 : 0),
              of(model.width, model.width, 2 * model.layers),
              of(kv_width, model.width, 2 * model.layers),
              of(tables * model.hidden_width(), model.width, ups),
              of(tables * model.width, model.hidden_width(), model.layers)};
  if (!model.moe.is_used()) return;
  for (size_t i = matrices.size() - 2; i < matrices.size(); ++i) matrices[i].is_of_experts = true;
  matrices.push_back(of(tables, model.width, model.layers));
  if (model.moe.shared_gate) matrices.push_back(of(1, model.width, model.layers));
  if (!model.moe.has_shared()) return;
  matrices.push_back(of(model.moe.shared_hidden, model.width, ups));
  matrices.push_back(of(model.width, model.moe.shared_hidden, model.layers));
}

bool StateShape::reduces_each() const noexcept { return choice.accumulates() && choice.accumulate == "sharded"; }

StateBytes state_bytes(const StateShape& shape) {
  const double p = shape.parameters;
  const bool is_alone = shape.members() == 1;
  const bool holds = is_alone || shape.is_server || !shape.choice.has_holders();
  const double trained = shape.trained();
  const double part = holds ? p / static_cast<double>(shape.shards()) : 0;  // the shard of this rank
  const double trained_part = holds ? trained / static_cast<double>(shape.shards()) : 0;
  const auto leaf = static_cast<double>(shape.compute_bytes);
  const bool has_versions = !is_alone && shape.choice.is_asynchronous();
  const bool is_copied = leaf != kRestBytes || has_versions;
  const bool keeps_all = is_alone || !shape.choice.frees_parameters();
  const bool is_stashed = shape.num_versions > 0;
  const double leaves = is_stashed ? 0 : shape.is_shared() ? leaf * part : keeps_all ? leaf * p : 0;
  const double rests = is_stashed || is_copied || !(keeps_all || shape.is_shared()) ? kRestBytes * part : 0;
  const bool is_reduced_in_place = is_alone || !shape.choice.shards_gradients();
  // Their shards are inside what stays, but in another dtype.
  const bool stays = shape.keeps_frozen && !keeps_all && !shape.is_shared();
  const double frozen_part = part - trained_part;
  const double frozen = stays ? leaf * shape.frozen - (leaf == kRestBytes ? kRestBytes * frozen_part : 0) : 0;
  const auto gradient = static_cast<double>(shape.gradient_bytes);
  const auto reduced = static_cast<double>(shape.reduce_bytes);
  StateBytes bytes{.parameters = leaves + rests + frozen,
                   .gradients = gradient * (is_reduced_in_place ? trained : trained_part),
                   .optimizer = kRestBytes * static_cast<double>(shape.num_moments) * trained_part,
                   .hook = hook_bytes(shape)};
  if (has_versions) {
    const double others = static_cast<double>(shape.members() - 1) * part;
    bytes.buffers = kSumBytes * trained + (kSumBytes + leaf) * others;
    return bytes;
  }
  bytes.buffers += leaf * p * static_cast<double>(shape.num_versions);
  bytes.buffers += (leaf + kSumBytes) * shape.shared_words;
  const auto units = [&](double count) { return std::min(count * shape.largest_unit, p); };
  if (!keeps_all && !shape.is_shared()) {
    const auto gathered = static_cast<double>(2 + shape.choice.prefetch);
    const double transient = stays ? trained : p;
    bytes.buffers += leaf * (shape.choice.reshard_after_forward ? std::min(units(gathered), transient) : transient);
  }
  const auto sums = [&](double count) { return std::min(units(count), trained); };
  if (is_reduced_in_place) {
    if (gradient != kSumBytes) bytes.buffers += kSumBytes * sums(kUnitsSummed);
    if (reduced != gradient && shape.ranks > 1) bytes.buffers += reduced * trained;  // no bound on what is in flight
    return bytes;
  }
  bytes.buffers +=
      shape.reduces_each() ? kSumBytes * sums(kUnitsSummed) + reduced * sums(kUnitsInFlight) : kSumBytes * trained;
  return bytes;
}

double checkpoint_bytes(const StateShape& shape) {
  const double kept = shape.parameters + static_cast<double>(shape.num_moments) * shape.trained();
  const int64_t writers = shape.choice.has_holders() ? shape.shards() : shape.ranks;
  return kRestBytes * kept / static_cast<double>(writers) + hook_bytes(shape);
}

StateTraffic state_traffic(const StateShape& shape) {
  const double p = shape.parameters;
  const auto n = static_cast<double>(shape.members());
  const double replicas = static_cast<double>(shape.ranks) / n;
  const auto steps = static_cast<double>(shape.num_micro_batches);
  StateTraffic traffic;
  traffic.reduced = shape.trained() * (shape.reduces_each() ? steps : 1);
  // Over shards: half of an all-reduce; if shards accumulate, once for each micro-batch. Over replicas, a whole
  // all-reduce of the shard, once a step.
  const double scattered = traffic.reduced * (n - 1) / n;
  AllReduced replicated = all_reduced(shape, shape.trained() / n, replicas);
  const double copied = copied_elements(shape) / n;
  replicated.elements += copied;
  replicated.bytes += copied * static_cast<double>(shape.reduce_bytes);
  double gathered = 0;
  if (n > 1) {
    const bool is_freed = shape.choice.frees_parameters() && shape.choice.reshard_after_forward && !shape.is_shared();
    traffic.gathered = (shape.gathers_frozen_once() ? shape.trained() : p) * (is_freed ? 2 * steps : 1);
    gathered = traffic.gathered * (n - 1) / n;
  }
  traffic.elements = scattered + replicated.elements + gathered;
  traffic.bytes = static_cast<double>(shape.reduce_bytes) * scattered + replicated.bytes +
                  static_cast<double>(shape.compute_bytes) * gathered;
  traffic.busiest = traffic.bytes;
  if (n > 1 && shape.choice.has_holders()) {
    const auto k = static_cast<double>(shape.shards());
    const auto reduced = static_cast<double>(shape.reduce_bytes) * traffic.reduced;
    const double server =
        reduced * (k - 1) / k + static_cast<double>(shape.compute_bytes) * traffic.gathered * (n - 1) / k;
    const double worker = k < n ? reduced : 0;
    traffic.busiest = std::max(server, worker);
  }
  return traffic;
}

}  // namespace caravan
