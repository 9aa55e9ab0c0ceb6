#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/world.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

// Accesses a field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

/// A word, or a file: what can be neither is a misspelt word.
RecipeKey balance() {
  RecipeKey key = text({"train.balance", OnResume::listed},
                       "rows of data-parallel ranks: \"even\"; \"measured\" by their speed; or a deals.jsonl to repeat",
                       FIELD(train.balance));
  key.set = [set = key.set](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* given = std::get_if<std::string>(&value);
    const bool may_be_file = given != nullptr && given->find_first_of("./") != std::string::npos;
    if (given != nullptr && !may_be_file && *given != "even" && *given != "measured") {
      return not_one_of(*given, std::vector<std::string>{"even", "measured"}) + "; a file is the deals.jsonl of a run";
    }
    return set(recipe, value);
  };
  return key;
}

std::vector<RecipeKey> training_keys() {
  return {
      text({"train.init_from", OnResume::free},
           "start with the weights of this run, checkpoint or Hugging Face folder; \"\": with random ones",
           FIELD(train.init_from)),
      integer({"train.steps", OnResume::listed}, "optimizer steps of the whole run", FIELD(train.steps), {0}),
      integer({"train.global_batch", OnResume::history}, "sequences per step, over all ranks",
              FIELD(train.global_batch), {1, 1 << 30}),
      integer_or({"train.micro_batch", OnResume::listed},
                 "sequences a rank computes at once: \"auto\" fits the memory; 0: all of its share",
                 FIELD(train.micro_batch), {0, 1 << 30}, "auto", kAutoMicroBatch),
      balance(),
      integer({"train.seed", OnResume::history}, "seed of initial weights, data order and dropout", FIELD(train.seed),
              {0}),
      integer({"train.eval_every", OnResume::listed}, "steps between evaluations; 0: only at the end",
              FIELD(train.eval_every), {0}),
      integer({"train.eval_batches", OnResume::listed},
              "batches of global_batch sequences in an evaluation; 0: all of the validation text",
              FIELD(train.eval_batches), {0, 1 << 30}),
      integer({"train.log_every", OnResume::free}, "steps between lines of the log", FIELD(train.log_every), {1}),
  };
}

/// What is wrong with a group; "" if nothing.
std::string wrong_group(const ParameterGroup& group) {
  if (std::ranges::find(group.parameters, "") != group.parameters.end()) return "names a parameter \"\"";
  std::string wrong = out_of({0, 1e6}, group.lr_factor);
  if (!wrong.empty()) return "lr_factor " + wrong;
  if (group.weight_decay) wrong = out_of({0, 1e3}, *group.weight_decay);
  return wrong.empty() ? "" : "weight_decay " + wrong;
}

RecipeKey parameter_groups() {
  return {{"optimizer.groups", OnResume::listed},
          "parameters by names, with their learning rate and decay: [{parameters = [\"embedding.*\"], lr_factor = 0.1, "
          "weight_decay = 0.0}]; [] : none",
          [](const Recipe& recipe) -> RecipeValue { return recipe.optimizer.groups; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* texts = std::get_if<std::vector<std::string>>(&value);
            const bool is_empty = texts != nullptr && texts->empty();
            const auto* groups = std::get_if<std::vector<ParameterGroup>>(&value);
            if (groups == nullptr && !is_empty) {
              return is_not(value, "a list of {parameters = [NAMES], lr_factor = NUMBER, weight_decay = NUMBER}");
            }
            const std::vector<ParameterGroup> taken = is_empty ? std::vector<ParameterGroup>{} : *groups;
            for (const ParameterGroup& group : taken) {
              if (std::string wrong = wrong_group(group); !wrong.empty()) return wrong;
            }
            recipe.optimizer.groups = taken;
            return "";
          }};
}

std::vector<RecipeKey> optimizer_keys() {
  std::vector<RecipeKey> keys = family_keys("optimizer", FIELD(optimizer.kind));
  keys.push_back(real({"optimizer.lr", OnResume::listed}, "peak learning rate", FIELD(optimizer.rate.lr), {0}));
  for (RecipeKey& key : family_keys("learning_rate", FIELD(optimizer.rate.schedule))) keys.push_back(std::move(key));
  keys.push_back(integer({"optimizer.warmup_steps", OnResume::listed},
                         "steps in which the learning rate rises from 0; by default 0 with points from step 0 or 1",
                         FIELD(optimizer.rate.warmup_steps), {0}));
  keys.push_back(real({"optimizer.clip_norm", OnResume::listed}, "clip the gradient to this norm; 0: no clipping",
                      FIELD(optimizer.clip_norm), {0}));
  keys.push_back(real({"optimizer.skip_spikes", OnResume::listed},
                      "skip steps whose loss or norm is this many standard deviations above the last 100; 0: none",
                      FIELD(optimizer.skip_spikes), {0, 1e6}));
  keys.push_back(parameter_groups());
  return keys;
}

std::vector<RecipeKey> comm_keys() {
  return {
      choice({"comm.backend", OnResume::free}, "communication back-end", FIELD(comm.backend),
             std::vector<std::string>(kBackends.begin(), kBackends.end())),
      real({"comm.timeout_s", OnResume::free, AcrossRanks::differ}, "seconds a rank waits for its peers",
           FIELD(comm.timeout_s), {0.001, 1e6}),
      integer({"comm.threads_per_rank", OnResume::free, AcrossRanks::differ},
              "threads per rank; 0: cores / ranks on the host", FIELD(comm.threads_per_rank), {0, 4096}),
      boolean({"comm.check", OnResume::free},
              "compare the labels of messages; gloo, mpi: also the calls of all ranks (thread, shm: always)",
              FIELD(comm.check)),
      only_with(
          boolean({"comm.overlap", OnResume::free},
                  "communication of split layers overlaps computation; false: one after another", FIELD(comm.overlap)),
          [](const Recipe& recipe) { return recipe.tensor_parallel.is_used() || recipe.context_parallel.is_used(); },
          "is used with mesh.tp or mesh.cp above 1 only"),
      text({"comm.algorithms", OnResume::listed, AcrossRanks::differ},
           "gloo, mpi: table written by bench comm --tune; \"\": built-in", FIELD(comm.algorithms)),
  };
}

std::vector<RecipeKey> output_keys() {
  return {
      boolean({"log.csv", OnResume::free}, "also write metrics.csv into the run's folder", FIELD(log.csv)),
      boolean({"log.tensorboard", OnResume::free}, "also write event files for TensorBoard into its folder tensorboard",
              FIELD(log.tensorboard)),
      integer({"log.tensors", OnResume::free},
              "steps between log lines with each layer's norms and its update relative to its weights; 0: none",
              FIELD(log.tensors), {0}),
      text({"checkpoint.dir", OnResume::free}, "folder of the run; \"\": runs/<recipe>-N", FIELD(checkpoint.dir)),
      integer({"checkpoint.every", OnResume::listed}, "steps between checkpoints; 0: only at the end",
              FIELD(checkpoint.every), {0}),
      integer({"checkpoint.keep", OnResume::listed}, "newest checkpoints to keep; 0: all", FIELD(checkpoint.keep), {0}),
      boolean({"checkpoint.async", OnResume::free}, "write a copy during training; the run waits only for the copy",
              FIELD(checkpoint.async)),
      boolean({"checkpoint.keep_best", OnResume::listed},
              "also save and keep the checkpoint of the lowest validation loss: best in the run",
              FIELD(checkpoint.keep_best)),
      text({"sample.prompt", OnResume::free}, "prompt of the text generated after training", FIELD(sample.prompt)),
      integer({"sample.tokens", OnResume::free}, "tokens to generate after training; 0: none", FIELD(sample.tokens),
              {0}),
      only_with(
          integer({"sample.every", OnResume::free}, "steps between samples during training; 0: only after it",
                  FIELD(sample.every), {0}),
          [](const Recipe& recipe) { return recipe.sample.tokens > 0; }, "is not used with sample.tokens = 0"),
      real({"sample.temperature", OnResume::free}, "sampling temperature; 0: always the most likely token",
           FIELD(sample.temperature), {0, 100}),
      integer({"sample.top_k", OnResume::free}, "sample among this many tokens; 0: all", FIELD(sample.top_k), {0}),
      real({"sample.top_p", OnResume::free}, "sample among the most likely tokens of this total probability",
           FIELD(sample.top_p), {0.000001, 1}),
  };
}

#undef FIELD

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> keys = [] {
    std::vector<RecipeKey> all = model_keys();
    for (auto& part : {lora_keys(), data_keys(), preference_keys(), training_keys(), optimizer_keys(), precision_keys(),
                       comm_keys(), parallel_keys(), output_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return keys;
}

const RecipeKey& recipe_key(std::string_view name) {
  const auto found = std::ranges::find(recipe_keys(), name, &RecipeKey::name);
  if (found != recipe_keys().end()) return *found;
  throw InternalError({"recipe", std::string(name), "is not a key", "", "use one of recipe_keys()"});
}

}  // namespace caravan
