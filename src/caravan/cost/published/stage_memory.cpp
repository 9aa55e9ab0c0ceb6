#include "caravan/cost/published/stage_memory.h"

#include <algorithm>

namespace caravan::published {
namespace {

using fitted::StateKind;
using Recompute = Run::Recompute;
using Offload = Run::Offload;

/// Sets bytes of model states, and of what ZeRO-3 has gathered or DeepSpeed keeps in buckets.
void count_states(const Run& run, size_t stage, StageMemory& memory) {
  const double weights = run.stage_weights[stage];
  const bool is_fp32 = run.element_bytes == 4;
  const StateKind kind = is_fp32 ? StateKind::fp32_master : run.framework.states;
  fitted::StateBytes bytes = fitted::kStateBytes[static_cast<size_t>(kind)];
  if (run.offload != Offload::none) bytes.optimizer = bytes.in_step = 0;
  const auto shards = static_cast<double>(std::max<int64_t>(1, run.shards));
  const auto cut = [&](double& count, int64_t from) { count /= run.zero >= from ? shards : 1; };
  cut(bytes.weights, 3);
  cut(bytes.gradients, 2);
  cut(bytes.optimizer, 1);
  cut(bytes.in_step, 1);
  if (run.offload != Offload::none && run.zero >= 2) bytes.gradients = 0;
  if (run.offload == Offload::parameters || (run.offload == Offload::disk && run.zero == 3)) bytes.weights = 0;
  double gathered = 0;
  const auto tp = static_cast<double>(run.tp);
  if (run.zero == 3 && shards > 1) {  // the current unit, the next one, a gradient
    const double unit = run.layer_weights / tp;
    gathered = (2 * unit + run.embedding_weights / tp) * run.element_bytes + unit * run.framework.gradient_bytes;
  } else if (run.zero >= 1 && run.framework.states == StateKind::deepspeed) {
    gathered = 2 * std::min(weights, fitted::kBucketElements) * (run.zero == 2 ? 2 : 1);
  }
  memory.states = weights * (bytes.weights + bytes.gradients + bytes.optimizer) + gathered;
  memory.in_step = weights * (bytes.weights + bytes.gradients + bytes.optimizer + bytes.in_step) + gathered / 2;
}

/// What the published number counts of `allocated` bytes.
double as_counted(const Run& run, double allocated, double states) {
  const std::string& kind = run.memory_kind;
  if (has_word(kind, "allocated")) return allocated;
  if (has_any(kind, {"reserved", "cached"})) return allocated * fitted::kReservedShare;
  if (has_any(kind, {"smi", "used", "process"})) return allocated * fitted::kReservedShare + fitted::kContextBytes;
  if (has_any(kind, {"states", "rest"})) return states;
  return allocated * fitted::kUnknownKind;
}

}  // namespace

LayerMemory layer_memory(const Run& run) {
  const auto width = static_cast<double>(run.width), mlp = static_cast<double>(run.mlp_width),
             tp = static_cast<double>(run.tp);
  const double tokens = run.tokens(), elements = run.element_bytes / 2;  // counts are of 16 bit
  const double kv = static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  const double whole = run.cuts_sequence ? 1 / tp : 1;  // of what tensor parallelism alone does not cut
  const bool is_eager = run.framework.kernels == fitted::Elementwise::eager;
  double inner = 0, outer = 0;
  if (run.is_gated) {
    inner = 2 * ((2 + 2 * kv) * width + (is_eager ? 4 : 3) * mlp) / tp;
    outer = 8 * width * whole;
  } else {
    inner = (8 * width + 4 * mlp) / tp;  // qkv 6, attention 2, up and its activation 2 each
    outer = (8 + (run.has_dropout ? 2 : 0)) * width * whole;
  }
  const auto heads = static_cast<double>(run.heads) / tp;
  const double scores = fitted::kScoreBytes * heads * tokens * static_cast<double>(run.sequence) *
                        (run.framework.fuses_softmax ? 1 : fitted::kEagerScores);
  const double sums_of_softmax = 4 * heads * tokens;
  const double without_scores = elements * tokens * (inner + outer);
  LayerMemory memory;
  memory.all = without_scores + (run.is_flash ? sums_of_softmax : elements * scores);
  memory.checkpoint = 2 * elements * tokens * width / (run.cuts_sequence || run.cuts_checkpoints ? tp : 1);
  memory.kept = memory.all;
  if (run.recompute == Recompute::attention && !run.is_flash) memory.kept = without_scores;
  if (run.recompute == Recompute::operators) {
    const double products = 2 * ((2 + 2 * kv) * width + (run.is_gated ? 2 : 1) * mlp + width);
    memory.kept = tokens * elements * (fitted::kProductsKept * products / tp + 6 * width * whole);
  }
  if (run.recompute == Recompute::full) {
    memory.kept = memory.checkpoint + (1 - run.recomputed) * (memory.all - memory.checkpoint);
  }
  return memory;
}

StageMemory stage_memory(const Run& run, size_t stage, double held) {
  const LayerMemory layer = layer_memory(run);
  const bool is_deepspeed = run.framework.states == StateKind::deepspeed, is_full = run.recompute == Recompute::full;
  const double hidden = run.tokens() * static_cast<double>(run.width);
  const auto sequence = static_cast<double>(run.sequence);
  const double layers = static_cast<double>(run.layers_on(stage)) / static_cast<double>(run.chunks);
  StageMemory memory;
  memory.activations = held * layers * layer.kept * run.held_share;
  // The output of a stage is kept too; DeepSpeed sends a mask of 4 bytes with it.
  if (is_full && run.pp > 1) {
    const bool has_mask = is_deepspeed && !run.is_flash;
    memory.activations +=
        held * (has_mask ? 4 * static_cast<double>(run.micro_batch) * sequence * sequence : layer.checkpoint);
  }
  memory.live = fitted::kLiveShare * layer.all;
  if (run.recompute == Recompute::operators) memory.live = layer.all;
  if (is_full) {
    memory.live = (is_deepspeed || run.zero == 3 ? fitted::kLiveRecomputedZero : fitted::kLiveRecomputed) * layer.all;
  }
  if (stage + 1 == run.layers_of.size()) {
    memory.logits =
        run.tokens() * static_cast<double>(run.vocabulary) / static_cast<double>(run.tp) * run.framework.logit_bytes +
        4 * hidden;
  }
  const double embedding = stage == 0 ? 2 * hidden * (is_full ? 1 : held) : 0;
  count_states(run, stage, memory);
  const double in_backward = memory.states + memory.activations + embedding + std::max(memory.live, memory.logits);
  memory.total = as_counted(run, std::max(in_backward, memory.in_step), memory.states);
  return memory;
}

StageMemory run_memory(const Run& run, const std::vector<double>& held) {
  if (run.memory_of_stage >= 0) {
    const auto stage = static_cast<size_t>(run.memory_of_stage);
    return stage_memory(run, stage, held[stage]);
  }
  StageMemory fullest;
  for (size_t stage = 0; stage < held.size(); ++stage) {
    const StageMemory memory = stage_memory(run, stage, held[stage]);
    if (stage == 0 || memory.total > fullest.total) fullest = memory;
  }
  return fullest;
}

}  // namespace caravan::published
