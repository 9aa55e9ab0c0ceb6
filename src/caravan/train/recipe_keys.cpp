#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/world.h"
#include "caravan/train/recipe.h"

namespace caravan {
namespace {

template <typename T>
using Field = std::function<T&(Recipe&)>;

template <typename T>
T read(const Field<T>& field, const Recipe& recipe) {
  return field(const_cast<Recipe&>(recipe));  // NOLINT: the field is read only
}

struct Range {
  double low;
  double high = std::numeric_limits<double>::max();
};

std::string out_of(const Range& range, double value) {
  if (value >= range.low && value <= range.high) return "";
  const double near = value > range.high ? range.high : range.low;  // of "nan", too
  return range.high < std::numeric_limits<double>::max()
             ? fmt::format("{} is outside {} .. {}; use {}", value, range.low, range.high, near)
             : fmt::format("{} is no number from {} on; use {} or more", value, range.low, range.low);
}

RecipeKey integer(std::string name, std::string help, Field<int64_t> field, Range range) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field, range](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* number = std::get_if<int64_t>(&value);
            if (number == nullptr) return "takes a whole number";
            const std::string wrong = out_of(range, static_cast<double>(*number));
            if (wrong.empty()) field(recipe) = *number;
            return wrong;
          }};
}

RecipeKey real(std::string name, std::string help, Field<double> field, Range range) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field, range](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* whole = std::get_if<int64_t>(&value);
            const auto* number = std::get_if<double>(&value);
            if (whole == nullptr && number == nullptr) return "takes a number";
            const double given = whole != nullptr ? static_cast<double>(*whole) : *number;
            const std::string wrong = out_of(range, given);
            if (wrong.empty()) field(recipe) = given;
            return wrong;
          }};
}

RecipeKey boolean(std::string name, std::string help, Field<bool> field) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<bool>(&value);
            if (given == nullptr) return "takes true or false";
            field(recipe) = *given;
            return "";
          }};
}

RecipeKey text(std::string name, std::string help, Field<std::string> field) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return "takes a string";
            field(recipe) = *given;
            return "";
          }};
}

RecipeKey choice(std::string name, std::string help, Field<std::string> field, std::vector<std::string> choices) {
  RecipeKey key = text(std::move(name), std::move(help), field);
  key.set = [set = key.set, choices](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* given = std::get_if<std::string>(&value);
    if (given != nullptr && std::find(choices.begin(), choices.end(), *given) == choices.end()) {
      return fmt::format("'{}' is none of {}; the nearest is '{}'", *given, join(choices), nearest(*given, choices));
    }
    return set(recipe, value);
  };
  return key;
}

/// An axis of the roadmap: refused, with what there is.
RecipeKey future_axis(const std::string& name, const std::string& help) {
  RecipeKey key{
      "mesh." + name, help, [](const Recipe&) { return RecipeValue{int64_t{1}}; },
      [name](Recipe&, const RecipeValue& value) -> std::string {
        const auto* number = std::get_if<int64_t>(&value);
        if (number == nullptr) return "takes a whole number";
        return *number == 1 ? "" : fmt::format("{} is not there yet; use {} = 1, and dp for the ranks", *number, name);
      }};
  key.is_printed = false;
  return key;
}

RecipeKey only_with(RecipeKey key, std::function<bool(const Recipe&)> condition, std::string reason) {
  key.idle = [condition = std::move(condition), reason = std::move(reason)](const Recipe& recipe) {
    return condition(recipe) ? std::string() : reason;
  };
  return key;
}

RecipeKey for_llama(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.model.kind == ModelKind::llama; },
      "means something for model.kind = \"llama\" only");
}

RecipeKey for_optimizer(const std::string& kind, RecipeKey key) {
  return only_with(
      std::move(key), [kind](const Recipe& recipe) { return recipe.optimizer.kind == kind; },
      "means something for optimizer.kind = \"" + kind + "\" only");
}

RecipeKey model_kind() {
  return {"model.kind", "the architecture",
          [](const Recipe& recipe) { return RecipeValue{std::string(name(recipe.model.kind))}; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const std::vector<std::string> kinds{"gpt2", "llama"};
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return "takes a string";
            if (*given == "gpt2") {
              recipe.model.kind = ModelKind::gpt2;
            } else if (*given == "llama") {
              recipe.model.kind = ModelKind::llama;
            } else {
              return fmt::format("'{}' is none of {}; the nearest is '{}'", *given, join(kinds),
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
              return "takes a path or a list of paths";
            }
            for (const std::string& path : recipe.data.text) {
              if (path.empty()) return "names no file; give a path";
            }
            return recipe.data.text.empty() ? "names no file; give at least one" : "";
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
              return "takes \"bytes\", a path, or {train = <vocabulary>}";
            }
            return "";
          }};
}

RecipeKey schedule() {
  return {"optimizer.schedule", "how the learning rate goes: constant, cosine, linear, constant_then_decay",
          [](const Recipe& recipe) {
            return RecipeValue{LearningRate::names()[static_cast<size_t>(recipe.optimizer.rate.kind)]};
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto& names = LearningRate::names();
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return "takes a string";
            if (std::find(names.begin(), names.end(), *given) == names.end()) {
              return fmt::format("'{}' is none of {}; the nearest is '{}'", *given, join(names),
                                 nearest(*given, names));
            }
            recipe.optimizer.rate.kind = LearningRate::parse(*given);
            return "";
          }};
}

// A field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

std::vector<RecipeKey> model_keys() {
  return {
      model_kind(),
      integer("model.layers", "blocks", FIELD(model.layers), {1, 10'000}),
      integer("model.width", "features of the stream", FIELD(model.width), {1, 1 << 20}),
      integer("model.heads", "attention heads; divide width", FIELD(model.heads), {1, 1 << 16}),
      only_with(
          integer("model.kv_heads", "key and value heads; divide heads; 0: as heads", FIELD(model.kv_heads),
                  {0, 1 << 16}),
          [](const Recipe& recipe) {
            return recipe.model.kind == ModelKind::llama || recipe.model.num_kv_heads() == recipe.model.heads;
          },
          "equals model.heads for model.kind = \"gpt2\"; fewer are for \"llama\" only"),
      integer("model.hidden", "features inside the MLP; 0: the model's own rule", FIELD(model.hidden), {0, 1 << 22}),
      integer("model.context", "tokens of a sequence", FIELD(model.context), {1, 1 << 24}),
      integer("model.vocabulary", "rows of the embedding; 0: as many as the tokenizer has tokens",
              FIELD(model.vocabulary), {0, 1 << 24}),
      boolean("model.tie_embeddings", "the head is the token embedding", FIELD(model.tie_embeddings)),
      real("model.dropout", "probability", FIELD(model.dropout), {0, 0.99}),
      real("model.norm_epsilon", "inside the norms' square root", FIELD(model.norm_epsilon), {1e-12, 1}),
      for_llama(real("model.rope_theta", "base of the rotary positions", FIELD(model.rope_theta), {1, 1e12})),
  };
}

std::vector<RecipeKey> training_keys() {
  return {
      data_text(),
      data_tokenizer(),
      integer("train.steps", "optimizer steps of the whole run", FIELD(train.steps), {0}),
      integer("train.global_batch", "sequences a step, over all ranks", FIELD(train.global_batch), {1, 1 << 30}),
      integer("train.micro_batch", "sequences a rank computes at once; 0: all its share", FIELD(train.micro_batch),
              {0, 1 << 30}),
      integer("train.seed", "of weights, data order and dropout", FIELD(train.seed), {0}),
      integer("train.eval_every", "steps between two evaluations; 0: at the end only", FIELD(train.eval_every), {0}),
      integer("train.log_every", "steps between two lines of the log", FIELD(train.log_every), {1}),
      choice("optimizer.kind", "the optimizer", FIELD(optimizer.kind), {"adamw", "sgd"}),
      real("optimizer.lr", "the highest learning rate", FIELD(optimizer.rate.lr), {0, 1e38}),
      schedule(),
      integer("optimizer.warmup_steps", "steps in which the rate rises", FIELD(optimizer.rate.warmup_steps), {0}),
      only_with(
          real("optimizer.final_lr_fraction", "of lr, at the last step", FIELD(optimizer.rate.final_fraction), {0, 1}),
          [](const Recipe& recipe) { return recipe.optimizer.rate.kind != LearningRate::Kind::constant; },
          "means nothing for optimizer.schedule = \"constant\""),
      only_with(
          real("optimizer.decay_fraction", "of the run, in which the rate falls", FIELD(optimizer.rate.decay_fraction),
               {0, 1}),
          [](const Recipe& recipe) { return recipe.optimizer.rate.kind == LearningRate::Kind::constant_then_decay; },
          "means something for optimizer.schedule = \"constant_then_decay\" only"),
      real("optimizer.weight_decay", "of matrices; norms and biases have none", FIELD(optimizer.weight_decay),
           {0, 1e3}),
      real("optimizer.clip_norm", "largest norm of the gradient; 0: any", FIELD(optimizer.clip_norm), {0}),
      for_optimizer("adamw", real("optimizer.beta1", "of adamw", FIELD(optimizer.beta1), {0, 0.999999})),
      for_optimizer("adamw", real("optimizer.beta2", "of adamw", FIELD(optimizer.beta2), {0, 0.999999})),
      for_optimizer("adamw", real("optimizer.epsilon", "of adamw", FIELD(optimizer.epsilon), {0, 1})),
      for_optimizer("sgd", real("optimizer.momentum", "of sgd", FIELD(optimizer.momentum), {0, 0.999999})),
      choice("precision.compute", "what layers compute in; parameters and moments are fp32", FIELD(precision.compute),
             {"fp32", "bf16"}),
  };
}

std::vector<RecipeKey> system_keys() {
  return {
      choice("comm.backend", "what carries the collectives", FIELD(comm.backend),
             std::vector<std::string>(kBackends.begin(), kBackends.end())),
      real("comm.timeout_s", "seconds a rank waits for its peers", FIELD(comm.timeout_s), {0.001, 1e6}),
      integer("comm.threads_per_rank", "threads of a rank's arithmetic; 0: cores / ranks", FIELD(comm.threads_per_rank),
              {0, 4096}),
      boolean("comm.check", "gloo, mpi: compare the ranks' calls (thread and shm always do)", FIELD(comm.check)),
      text("comm.algorithms", "gloo, mpi: table that bench comm --tune wrote; \"\": built-in", FIELD(comm.algorithms)),
      integer("mesh.dp", "ranks of data parallelism; 0: all that are left", FIELD(mesh.dp), {0, 1 << 20}),
      future_axis("tp", "tensor parallelism"),
      future_axis("pp", "pipeline parallelism"),
      future_axis("cp", "context parallelism"),
      future_axis("ep", "expert parallelism"),
      choice("data_parallel.technique", "how ranks of dp share the work", FIELD(data_parallel.technique), {"ddp"}),
      integer("data_parallel.bucket_bytes", "of gradients sent at once", FIELD(data_parallel.bucket_bytes), {1}),
      text("checkpoint.dir", "folder of the run; \"\": runs/<recipe>-N", FIELD(checkpoint.dir)),
      integer("checkpoint.every", "steps; 0: at the end only", FIELD(checkpoint.every), {0}),
      integer("checkpoint.keep", "newest ones that stay; 0: all", FIELD(checkpoint.keep), {0}),
      text("sample.prompt", "what the text printed after training starts with", FIELD(sample.prompt)),
      integer("sample.tokens", "tokens of it; 0: none", FIELD(sample.tokens), {0}),
      real("sample.temperature", "0: the likeliest token", FIELD(sample.temperature), {0, 100}),
      integer("sample.top_k", "candidates; 0: all", FIELD(sample.top_k), {0}),
      real("sample.top_p", "probability mass of the candidates", FIELD(sample.top_p), {0.000001, 1}),
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
