#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/world.h"
#include "caravan/train/key_kinds.h"

namespace caravan {
namespace {

/// An axis of a technique that does not exist yet: any size but 1 is refused.
RecipeKey future_axis(const std::string& name, const std::string& help) {
  RecipeKey key{"mesh." + name, help, [](const Recipe&) { return RecipeValue{int64_t{1}}; },
                [](Recipe&, const RecipeValue& value) -> std::string {
                  const auto* number = std::get_if<int64_t>(&value);
                  if (number == nullptr) return is_not(value, "a whole number");
                  return *number == 1 ? ""
                                      : fmt::format("{} is not supported yet, must be 1; mesh.dp takes ranks", *number);
                }};
  key.is_printed = false;
  return key;
}

RecipeKey for_llama(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.model.kind == ModelKind::llama; },
      "is used with model.kind = \"llama\" only");
}

RecipeKey for_optimizer(const std::string& kind, RecipeKey key) {
  return only_with(
      std::move(key), [kind](const Recipe& recipe) { return recipe.optimizer.kind == kind; },
      "is used with optimizer.kind = \"" + kind + "\" only");
}

RecipeKey for_technique(bool (DataParallelChoice::*holds)() const, RecipeKey key) {
  const std::string names = join(techniques_where(holds), "\", \"");
  key.idle = [holds, names](const Recipe& recipe) -> std::string {
    DataParallelChoice choice = recipe.data_parallel;
    if ((choice.*holds)()) return "";
    choice.mode = server_modes().front();
    if ((choice.*holds)()) return "is used with data_parallel.mode = \"" + choice.mode + "\" only";
    return fmt::format("is used with data_parallel.technique = \"{}\" only", names);
  };
  return key;
}

RecipeKey for_mode(bool (DataParallelChoice::*holds)() const, const std::string& modes, RecipeKey key) {
  return only_with(
      std::move(key), [holds](const Recipe& recipe) { return (recipe.data_parallel.*holds)(); },
      "is used with data_parallel.mode = " + modes + " only");
}

RecipeKey data_parallel_servers() {
  return {"data_parallel.servers", "the first so many ranks hold parameters and optimizer state; \"all\": every rank",
          [](const Recipe& recipe) -> RecipeValue {
            if (recipe.data_parallel.servers == 0) return std::string("all");
            return recipe.data_parallel.servers;
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* text = std::get_if<std::string>(&value);
            const auto* number = std::get_if<int64_t>(&value);
            const bool is_all = text != nullptr && *text == "all";
            if (!is_all && number == nullptr) return is_not(value, "a whole number or \"all\"");
            const std::string wrong = is_all ? "" : out_of({1, 1 << 20}, static_cast<double>(*number));
            if (wrong.empty()) recipe.data_parallel.servers = is_all ? 0 : *number;
            return wrong;
          }};
}

RecipeKey data_parallel_units() {
  return {"data_parallel.units", "modules inside blocks that are gathered on their own, such as \"blocks.*.mlp\"",
          [](const Recipe& recipe) -> RecipeValue { return recipe.data_parallel.units; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            if (const auto* one = std::get_if<std::string>(&value)) {
              recipe.data_parallel.units = {*one};
            } else if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
              recipe.data_parallel.units = *many;
            } else {
              return is_not(value, "a pattern or a list of patterns");
            }
            const auto& units = recipe.data_parallel.units;
            return std::find(units.begin(), units.end(), "") != units.end() ? "names no module" : "";
          }};
}

RecipeKey model_kind() {
  return {"model.kind", "the architecture",
          [](const Recipe& recipe) { return RecipeValue{std::string(name(recipe.model.kind))}; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const std::vector<std::string> kinds{"gpt2", "llama"};
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            if (*given == "gpt2") {
              recipe.model.kind = ModelKind::gpt2;
            } else if (*given == "llama") {
              recipe.model.kind = ModelKind::llama;
            } else {
              return fmt::format("'{}' is not one of {}; the nearest is '{}'", *given, join(kinds),
                                 nearest(*given, kinds));
            }
            return "";
          }};
}

RecipeKey data_text() {
  return {"data.text", "a text file, or a list of them; each is one document",
          [](const Recipe& recipe) -> RecipeValue {
            if (recipe.data.text.size() == 1) return recipe.data.text.front();
            return recipe.data.text;
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            if (const auto* one = std::get_if<std::string>(&value)) {
              recipe.data.text = {*one};
            } else if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
              recipe.data.text = *many;
            } else {
              return is_not(value, "a path or a list of paths");
            }
            const bool has_empty =
                std::find(recipe.data.text.begin(), recipe.data.text.end(), "") != recipe.data.text.end();
            return has_empty || recipe.data.text.empty() ? "names no file" : "";
          }};
}

RecipeKey micro_batch() {
  return {"train.micro_batch", "sequences a rank computes at once: \"auto\" fits the memory; 0: all of its share",
          [](const Recipe& recipe) -> RecipeValue {
            if (recipe.train.micro_batch == kAutoMicroBatch) return std::string("auto");
            return recipe.train.micro_batch;
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* text = std::get_if<std::string>(&value);
            const auto* number = std::get_if<int64_t>(&value);
            const bool is_auto = text != nullptr && *text == "auto";
            if (!is_auto && number == nullptr) return is_not(value, "a whole number or \"auto\"");
            const std::string wrong = is_auto ? "" : out_of({0, 1 << 30}, static_cast<double>(*number));
            if (wrong.empty()) recipe.train.micro_batch = is_auto ? kAutoMicroBatch : *number;
            return wrong;
          }};
}

RecipeKey memory_recompute() {
  return {"memory.recompute", "computed again in backward: none, selective, full, or a list of modules",
          [](const Recipe& recipe) -> RecipeValue {
            const RecomputeChoice& choice = recipe.memory.recompute;
            if (choice.kind == RecomputeChoice::Kind::modules) return choice.patterns;
            return choice.to_string();
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const std::vector<std::string>& kinds = recompute_kinds();
            if (const auto* one = std::get_if<std::string>(&value)) {
              const auto kind = std::find(kinds.begin(), kinds.end(), *one);
              if (kind == kinds.end()) {
                return fmt::format(
                    "'{}' is not one of {}, nor a list of modules such as [\"blocks.*\"]; the nearest is '{}'", *one,
                    join(kinds), nearest(*one, kinds));
              }
              recipe.memory.recompute = {.kind = static_cast<RecomputeChoice::Kind>(kind - kinds.begin())};
              return "";
            }
            const auto* patterns = std::get_if<std::vector<std::string>>(&value);
            if (patterns == nullptr) return is_not(value, "a string or a list of modules");
            const std::string wrong = wrong_with_patterns(*patterns);
            if (wrong.empty()) {
              recipe.memory.recompute = {.kind = RecomputeChoice::Kind::modules, .patterns = *patterns};
            }
            return wrong;
          }};
}

RecipeKey data_tokenizer() {
  return {"data.tokenizer", "\"bytes\", the path of a tokenizer.json, or {train = 1024}: one trained on the text",
          [](const Recipe& recipe) -> RecipeValue {
            if (recipe.data.tokenizer.empty()) return TrainTokenizer{recipe.data.trained_vocabulary};
            return recipe.data.tokenizer;
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            if (const auto* train = std::get_if<TrainTokenizer>(&value)) {
              const std::string wrong = out_of({257, 1 << 20}, static_cast<double>(train->vocabulary));
              if (!wrong.empty()) return wrong;
              recipe.data.tokenizer.clear();
              recipe.data.trained_vocabulary = train->vocabulary;
            } else if (const auto* path = std::get_if<std::string>(&value); path != nullptr && !path->empty()) {
              recipe.data.tokenizer = *path;
            } else {
              return is_not(value, "\"bytes\", a path, or {train = VOCABULARY}");
            }
            return "";
          }};
}

RecipeKey schedule() {
  return {"optimizer.schedule", "learning rate schedule: constant, cosine, linear, constant_then_decay",
          [](const Recipe& recipe) {
            return RecipeValue{LearningRate::names()[static_cast<size_t>(recipe.optimizer.rate.kind)]};
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto& names = LearningRate::names();
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            if (std::find(names.begin(), names.end(), *given) == names.end()) {
              return fmt::format("'{}' is not one of {}; the nearest is '{}'", *given, join(names),
                                 nearest(*given, names));
            }
            recipe.optimizer.rate.kind = LearningRate::parse(*given);
            return "";
          }};
}

// Gives a field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

std::vector<RecipeKey> model_keys() {
  return {
      model_kind(),
      integer("model.layers", "blocks", FIELD(model.layers), {1, 10'000}),
      integer("model.width", "features of a token's vector", FIELD(model.width), {1, 1 << 20}),
      integer("model.heads", "attention heads; a divisor of width", FIELD(model.heads), {1, 1 << 16}),
      only_with(
          integer("model.kv_heads", "key and value heads; a divisor of heads; 0: as many as heads",
                  FIELD(model.kv_heads), {0, 1 << 16}),
          [](const Recipe& recipe) {
            return recipe.model.kind == ModelKind::llama || recipe.model.num_kv_heads() == recipe.model.heads;
          },
          "must equal model.heads with model.kind = \"gpt2\"; fewer are for \"llama\" only"),
      integer("model.hidden", "features inside the MLP; 0: the architecture's default", FIELD(model.hidden),
              {0, 1 << 22}),
      integer("model.context", "tokens in a sequence", FIELD(model.context), {1, 1 << 24}),
      integer("model.vocabulary", "rows of the embedding; 0: the tokenizer's number of tokens", FIELD(model.vocabulary),
              {0, 1 << 24}),
      boolean("model.tie_embeddings", "the output layer shares the weights of the token embedding",
              FIELD(model.tie_embeddings)),
      real("model.dropout", "dropout probability", FIELD(model.dropout), {0, 0.99}),
      real("model.norm_epsilon", "added to the variance in the norms", FIELD(model.norm_epsilon), {1e-12, 1}),
      for_llama(
          real("model.rope_theta", "base of the rotary position frequencies", FIELD(model.rope_theta), {1, 1e12})),
  };
}

std::vector<RecipeKey> training_keys() {
  return {
      data_text(),
      data_tokenizer(),
      integer("train.steps", "optimizer steps of the whole run", FIELD(train.steps), {0}),
      integer("train.global_batch", "sequences per step, over all ranks", FIELD(train.global_batch), {1, 1 << 30}),
      micro_batch(),
      integer("train.seed", "seed of initial weights, data order and dropout", FIELD(train.seed), {0}),
      integer("train.eval_every", "steps between evaluations; 0: only at the end", FIELD(train.eval_every), {0}),
      integer("train.eval_batches", "batches of global_batch sequences in an evaluation; 0: all of the validation text",
              FIELD(train.eval_batches), {0, 1 << 30}),
      integer("train.log_every", "steps between lines of the log", FIELD(train.log_every), {1}),
      choice("optimizer.kind", "the optimizer", FIELD(optimizer.kind), {"adamw", "sgd"}),
      real("optimizer.lr", "peak learning rate", FIELD(optimizer.rate.lr), {0}),
      schedule(),
      integer("optimizer.warmup_steps", "steps in which the learning rate rises from 0",
              FIELD(optimizer.rate.warmup_steps), {0}),
      only_with(
          real("optimizer.final_lr_fraction", "learning rate at the last step, as a fraction of lr",
               FIELD(optimizer.rate.final_fraction), {0, 1}),
          [](const Recipe& recipe) { return recipe.optimizer.rate.kind != LearningRate::Kind::constant; },
          "is not used with optimizer.schedule = \"constant\""),
      only_with(
          real("optimizer.decay_fraction", "fraction of the run in which the learning rate falls",
               FIELD(optimizer.rate.decay_fraction), {0, 1}),
          [](const Recipe& recipe) { return recipe.optimizer.rate.kind == LearningRate::Kind::constant_then_decay; },
          "is used with optimizer.schedule = \"constant_then_decay\" only"),
      real("optimizer.weight_decay", "weight decay of matrices; norms and biases have none",
           FIELD(optimizer.weight_decay), {0, 1e3}),
      real("optimizer.clip_norm", "clip the gradient to this norm; 0: no clipping", FIELD(optimizer.clip_norm), {0}),
      for_optimizer("adamw",
                    real("optimizer.beta1", "decay of the first moment", FIELD(optimizer.beta1), {0, 0.999999})),
      for_optimizer("adamw",
                    real("optimizer.beta2", "decay of the second moment", FIELD(optimizer.beta2), {0, 0.999999})),
      for_optimizer("adamw", real("optimizer.epsilon", "added to the denominator", FIELD(optimizer.epsilon), {0, 1})),
      for_optimizer("sgd", real("optimizer.momentum", "momentum", FIELD(optimizer.momentum), {0, 0.999999})),
      choice("precision.compute", "dtype of the layers' arithmetic; parameters and moments are fp32",
             FIELD(precision.compute), {"fp32", "bf16"}),
  };
}

std::vector<RecipeKey> system_keys() {
  return {
      choice("comm.backend", "communication back-end", FIELD(comm.backend),
             std::vector<std::string>(kBackends.begin(), kBackends.end())),
      real("comm.timeout_s", "seconds a rank waits for its peers", FIELD(comm.timeout_s), {0.001, 1e6}),
      integer("comm.threads_per_rank", "threads per rank; 0: cores / ranks on the host", FIELD(comm.threads_per_rank),
              {0, 4096}),
      boolean("comm.check", "gloo, mpi: compare the calls of all ranks (thread and shm always do)", FIELD(comm.check)),
      text("comm.algorithms", "gloo, mpi: table written by bench comm --tune; \"\": built-in", FIELD(comm.algorithms)),
      integer("mesh.dp", "data-parallel ranks; 0: all that are left", FIELD(mesh.dp), {0, 1 << 20}),
      future_axis("tp", "tensor parallelism"),
      future_axis("pp", "pipeline parallelism"),
      future_axis("cp", "context parallelism"),
      future_axis("ep", "expert parallelism"),
      choice("data_parallel.technique", "data-parallel technique", FIELD(data_parallel.technique),
             data_parallel_techniques()),
      integer("data_parallel.bucket_bytes", "bytes of gradients per all-reduce", FIELD(data_parallel.bucket_bytes),
              {1}),
      for_technique(&DataParallelChoice::is_sharded, data_parallel_units()),
      for_technique(&DataParallelChoice::has_groups,
                    integer("data_parallel.shard", "ranks that share one set of shards; a divisor of dp",
                            FIELD(data_parallel.shard), {0, 1 << 20})),
      for_technique(&DataParallelChoice::frees_parameters,
                    boolean("data_parallel.reshard_after_forward",
                            "free parameters after forward, gather them again for backward; false: once a step",
                            FIELD(data_parallel.reshard_after_forward))),
      for_technique(&DataParallelChoice::is_gathered, integer("data_parallel.prefetch", "units whose gather runs ahead",
                                                              FIELD(data_parallel.prefetch), {0, 2})),
      for_technique(&DataParallelChoice::accumulates,
                    choice("data_parallel.accumulate",
                           "gradients of micro-batches add up \"sharded\", or \"full\" with one reduction a step",
                           FIELD(data_parallel.accumulate), {"sharded", "full"})),
      for_technique(&DataParallelChoice::may_share,
                    choice("data_parallel.share",
                           "parameters lie once in memory that ranks share: \"auto\" where they can, \"on\", \"off\"",
                           FIELD(data_parallel.share), {"auto", "on", "off"})),
      for_technique(&DataParallelChoice::has_servers, data_parallel_servers()),
      for_technique(&DataParallelChoice::has_servers,
                    choice("data_parallel.mode",
                           "\"sync\": workers step together; \"async\": each at its own pace; \"bounded\": in limits",
                           FIELD(data_parallel.mode), server_modes())),
      for_mode(&DataParallelChoice::is_bounded, "\"bounded\"",
               integer("data_parallel.staleness", "steps that a worker may be ahead of the slowest one",
                       FIELD(data_parallel.staleness), {0, 1 << 20})),
      for_mode(&DataParallelChoice::is_asynchronous, "\"async\" or \"bounded\"",
               integer("data_parallel.drain",
                       "steps of the slowest worker after which all stop for a line of the log, at the latest",
                       FIELD(data_parallel.drain), {1, 1 << 20})),
      memory_recompute(),
      text("checkpoint.dir", "folder of the run; \"\": runs/<recipe>-N", FIELD(checkpoint.dir)),
      integer("checkpoint.every", "steps between checkpoints; 0: only at the end", FIELD(checkpoint.every), {0}),
      integer("checkpoint.keep", "newest checkpoints to keep; 0: all", FIELD(checkpoint.keep), {0}),
      text("sample.prompt", "prompt of the text generated after training", FIELD(sample.prompt)),
      integer("sample.tokens", "tokens to generate after training; 0: none", FIELD(sample.tokens), {0}),
      real("sample.temperature", "sampling temperature; 0: always the most likely token", FIELD(sample.temperature),
           {0, 100}),
      integer("sample.top_k", "sample among this many tokens; 0: all", FIELD(sample.top_k), {0}),
      real("sample.top_p", "sample among the most likely tokens of this total probability", FIELD(sample.top_p),
           {0.000001, 1}),
  };
}

#undef FIELD

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> keys = [] {
    std::vector<RecipeKey> all = model_keys();
    for (auto& part : {training_keys(), system_keys()}) all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return keys;
}

}  // namespace caravan
