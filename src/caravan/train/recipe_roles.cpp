#include "caravan/train/recipe_roles.h"

#include <algorithm>
#include <string>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using enum AcrossRanks;
using enum OnResume;

constexpr RecipeRole kRoles[] = {
    {"model.kind", equal, shape},
    {"model.layers", equal, shape},
    {"model.width", equal, shape},
    {"model.heads", equal, shape},
    {"model.kv_heads", equal, shape},
    {"model.hidden", equal, shape},
    {"model.context", equal, shape},
    {"model.vocabulary", equal, shape},
    {"model.tie_embeddings", equal, shape},
    {"model.dropout", equal, history},
    {"model.norm_epsilon", equal, function},
    {"model.rope_theta", equal, function},
    {"model.qkv_bias", equal, shape},
    {"moe.experts", equal, shape},
    {"moe.top_k", equal, function},
    {"moe.gates", equal, function},
    {"moe.normalize", equal, function},
    {"moe.shared", equal, shape},
    {"moe.shared_gate", equal, shape},
    {"moe.capacity", equal, history},
    {"moe.balance", equal, listed},
    {"moe.balance_loss", equal, listed},
    {"moe.z_loss", equal, listed},
    {"lora.rank", equal, shape},
    {"lora.alpha", equal, function},
    {"lora.targets", equal, shape},
    {"lora.adapter", equal, free},  // the weights are compared
    {"data.text", differ, content},
    {"data.sources", differ, content},
    {"data.format", equal, content},
    {"data.chat_template", differ, content},
    {"data.streaming", equal, history},
    {"data.field", equal, content},
    {"data.skip_bad_lines", equal, content},
    {"data.validation", differ, content},
    {"data.validation_fraction", equal, content},
    {"data.tokenizer", differ, content},
    {"data.pack", equal, history},
    {"data.positions", equal, history},
    {"train.init_from", equal, free},  // the weights are compared
    {"train.steps", equal, listed},
    {"train.global_batch", equal, history},
    {"train.micro_batch", equal, listed},
    {"train.seed", equal, history},
    {"train.eval_every", equal, listed},
    {"train.eval_batches", equal, listed},
    {"train.log_every", equal, free},
    {"log.csv", equal, free},
    {"log.tensorboard", equal, free},
    {"optimizer.kind", equal, history},
    {"optimizer.lr", equal, listed},
    {"optimizer.schedule", equal, listed},
    {"optimizer.warmup_steps", equal, listed},
    {"optimizer.final_lr_fraction", equal, listed},
    {"optimizer.decay_fraction", equal, listed},
    {"optimizer.weight_decay", equal, listed},
    {"optimizer.clip_norm", equal, listed},
    {"optimizer.beta1", equal, listed},
    {"optimizer.beta2", equal, listed},
    {"optimizer.epsilon", equal, listed},
    {"optimizer.momentum", equal, listed},
    {"precision.compute", equal, history},
    {"precision.gradients", equal, listed},
    {"precision.reduce", equal, listed},
    {"precision.loss_scale", equal, listed},
    {"comm.backend", equal, free},
    {"comm.timeout_s", differ, free},
    {"comm.threads_per_rank", differ, free},  // the number in use is compared: see Numerics
    {"comm.check", equal, free},
    {"comm.overlap", equal, free},
    {"comm.algorithms", differ, listed},
    {"mesh.dp", equal, free},
    {"mesh.tp", equal, free},
    {"mesh.pp", equal, free},
    {"mesh.cp", equal, free},
    {"mesh.ep", equal, free},
    {"data_parallel.technique", equal, listed},
    {"data_parallel.bucket_bytes", equal, free},
    {"data_parallel.units", equal, free},
    {"data_parallel.shard", equal, free},
    {"data_parallel.reshard_after_forward", equal, free},
    {"data_parallel.prefetch", equal, free},
    {"data_parallel.accumulate", equal, free},
    {"data_parallel.share", equal, free},
    {"data_parallel.hook", equal, listed},
    {"data_parallel.hook_rank", equal, listed},
    {"data_parallel.hook_fraction", equal, listed},
    {"data_parallel.servers", equal, free},
    {"data_parallel.mode", equal, listed},
    {"data_parallel.staleness", equal, listed},
    {"data_parallel.drain", equal, listed},
    {"tensor_parallel.kind", equal, free},
    {"tensor_parallel.sequence", equal, free},
    {"tensor_parallel.depth", equal, free},
    {"context_parallel.kind", equal, free},
    {"context_parallel.exchange", equal, free},
    {"pipeline.schedule", equal, listed},
    {"pipeline.micro_batches", equal, free},
    {"pipeline.stages_per_rank", equal, free},
    {"pipeline.cut", equal, free},
    {"pipeline.drain", equal, listed},
    {"memory.recompute", equal, free},
    {"checkpoint.dir", equal, free},
    {"checkpoint.every", equal, listed},
    {"checkpoint.keep", equal, listed},
    {"checkpoint.async", equal, free},
    {"checkpoint.keep_best", equal, listed},
    {"sample.prompt", equal, free},
    {"sample.tokens", equal, free},
    {"sample.every", equal, free},
    {"sample.temperature", equal, free},
    {"sample.top_k", equal, free},
    {"sample.top_p", equal, free},
};

}  // namespace

const RecipeRole& role_of(std::string_view key) {
  const auto* found = std::ranges::find(kRoles, key, &RecipeRole::key);
  if (found == std::end(kRoles)) {
    throw InternalError({"recipe", std::string(key), "has no role", "", "give it one in train/recipe_roles.cpp"});
  }
  return *found;
}

}  // namespace caravan
