#include "caravan/recipe/recipe.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/recipe/points_file.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/demands.h"

namespace caravan {

std::string Recipe::where(const std::string& key) const {
  const auto found = locations.find(key);
  return found == locations.end() ? "default of " + key : found->second;
}

std::string Recipe::where_given(const std::string& key) const {
  if (locations.contains(key)) return where(key);
  const std::string section = key.substr(0, key.find('.') + 1);
  std::vector<std::string> given;
  for (const auto& [other, location] : locations) {
    if (other.starts_with(section)) given.push_back(fmt::format("{} ({})", location, other));
  }
  if (given.empty()) return where(key);
  return fmt::format("{}, and the {}", join(given), where(key));
}

void Recipe::refuse(const std::string& key, const std::string& fact, const std::string& action) const {
  throw UsageError({.op = "recipe", .subject = key, .fact = fact, .where = where_given(key), .action = action});
}

std::vector<std::string> recipe_notes(const Recipe& recipe) {
  std::vector<std::string> notes;
  const int64_t steps = recipe.train.steps;
  const int64_t warmup = recipe.optimizer.rate.warmup_steps;
  if (steps > 0 && warmup >= steps) {
    notes.push_back(
        fmt::format("optimizer.warmup_steps is {}, and the run has {} steps: the learning rate does "
                    "not reach optimizer.lr",
                    warmup, steps));
  }
  if (std::string note = warmup_note(recipe); !note.empty()) notes.push_back(std::move(note));
  if (recipe.data.has_chats() && !recipe.data.task.has_records() && !recipe.data.fills_best()) {
    notes.push_back(
        "data.fill = \"stream\" cuts chats where sequences end, and answers lose their questions: \"best_fit\" keeps "
        "chats whole");
  }
  if (recipe.offload.reads("delayed_update") && recipe.offload.flag("delayed_update")) {
    const int64_t after = recipe.offload.whole("delay_after");
    if (steps > 0 && after >= steps) {
      notes.push_back(fmt::format("offload.delay_after is {}, and the run has {} steps: none of its updates is delayed",
                                  after, steps));
    }
  }
  const int64_t tp = recipe.tensor_parallel.parts().heads;
  const int64_t kv_heads = recipe.model.num_kv_heads();
  if (kv_heads % tp != 0) {
    notes.push_back(
        fmt::format("model.kv_heads is {} and mesh.tp {}: groups of {} ranks have the same heads of keys and values",
                    kv_heads, tp, tp / std::gcd(kv_heads, tp)));
  }
  const MoeConfig& moe = recipe.model.moe;
  if (moe.experts > 1 && moe.top_k == 1 && moe.normalize) {
    notes.push_back(
        "moe.normalize makes the gate of moe.top_k = 1 expert always 1: routers learn from their own losses alone");
  }
  if (recipe.context_parallel.degree > recipe.context_parallel.parts().heads && recipe.model.dropout > 0) {
    notes.push_back(
        "model.dropout is above 0: attention over a ring gathers keys and values instead of passing them on");
  }
  std::vector<Setting> chosen = techniques_of(recipe);
  for (const Split* split : {&recipe.tensor_parallel, &recipe.context_parallel, &recipe.expert_parallel}) {
    if (split->is_used()) chosen.push_back(split->kind);
  }
  for (const Setting& setting : chosen) {
    std::string note = setting.entry().note(setting, recipe.model);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

std::string BatchPlan::to_string() const {
  return fmt::format("global_batch {} = dp {} x micro_batch {} x accumulation {}", dp * rows(), dp, micro_batch,
                     accumulation);
}

std::vector<Setting> techniques_of(const Recipe& recipe) {
  return techniques_of(recipe.data_parallel, recipe.hook, recipe.memory.recompute, recipe.pipeline, recipe.offload);
}

int64_t next_due(const Recipe& recipe, int64_t step, int64_t end) {
  for (const int64_t every : {recipe.train.eval_every, recipe.checkpoint.every, recipe.sample.every}) {
    if (every > 0) end = std::min(end, (step / every + 1) * every);
  }
  return end;
}

int64_t ranks_per_replica(const Recipe& recipe) {
  return recipe.pipeline.degree * recipe.expert_parallel.degree * recipe.context_parallel.degree *
         recipe.tensor_parallel.degree;
}

std::string split_text(const Recipe& recipe, int64_t dp) {
  const Split& tensor = recipe.tensor_parallel;
  const Split& context = recipe.context_parallel;
  const Split& experts = recipe.expert_parallel;
  const PipelineChoice& pipeline = recipe.pipeline;
  if (!tensor.is_used() && !context.is_used() && !experts.is_used() && !pipeline.is_used()) return "";
  std::string text = fmt::format("dp {}", dp);
  if (pipeline.is_used())
    text = fmt::format("pp {} ({}) x ", pipeline.degree, pipeline.is_file() ? "a table" : pipeline.name()) + text;
  if (experts.is_used()) text += fmt::format(" x ep {}", experts.degree);
  if (context.is_used()) text += fmt::format(" x cp {} ({})", context.degree, context.kind.name());
  if (tensor.is_used()) {
    text += fmt::format(" x tp {} ({}{})", tensor.degree, tensor.kind.name(),
                        tensor.parts().stream > 1 ? ", sequence" : "");
  }
  return text;
}

std::string order_text(const Recipe& recipe, int64_t dp) {
  std::vector<std::string> axes;
  const auto add = [&](const char* name, int64_t size, const char* sends) {
    if (size > 1) axes.push_back(fmt::format("{} ({})", name, sends));
  };
  add("tp", recipe.tensor_parallel.degree, "sends several times a layer, and waits");
  add("cp", recipe.context_parallel.degree, "in each attention");
  add("ep", recipe.expert_parallel.degree, "in each layer of experts");
  add("dp", dp, "parameters and gradients, while it computes");
  add("pp", recipe.pipeline.degree, "a tensor for each micro-batch and stage");
  return axes.size() < 2 ? "" : fmt::format("neighbours on {}", fmt::join(axes, ", then "));
}

int recipe_ranks(const Recipe& recipe) {
  const int64_t others = ranks_per_replica(recipe);
  const int64_t dp = recipe.mesh.dp == 0 && others > 1 ? 1 : recipe.mesh.dp;
  return static_cast<int>(dp * others);
}

}  // namespace caravan
