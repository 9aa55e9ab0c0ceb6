#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/model_source.h"
#include "apps/caravan/commands/prompts.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/generate/generator.h"
#include "caravan/generate/stop_strings.h"

namespace caravan::app {
namespace {

/// The command line first, then the model's generation_config.json, then the defaults: those of transformers if the
/// file asks for sampling, else those of a recipe's sample.
SamplingOptions sampling_options(const GenerateArguments& arguments, const GenerationConfig& model) {
  const Recipe::Sample ours;
  const bool model_samples = model.do_sample.value_or(false);
  SamplingOptions sampling{
      .temperature = model.temperature.value_or(model_samples ? 1.0 : ours.temperature),
      .top_k = model.top_k.value_or(model_samples ? 50 : ours.top_k),
      .top_p = model.top_p.value_or(model_samples ? 1.0 : ours.top_p),
      .repetition_penalty = arguments.repetition_penalty.value_or(model.repetition_penalty.value_or(1.0)),
      .seed = arguments.seed,
  };
  const bool asks_for_sampling = arguments.temperature || arguments.top_k || arguments.top_p;
  if (model.do_sample == false && !asks_for_sampling) sampling.temperature = 0;
  if (arguments.temperature) sampling.temperature = *arguments.temperature;
  if (arguments.top_k) sampling.top_k = *arguments.top_k;
  if (arguments.top_p) sampling.top_p = *arguments.top_p;
  return sampling;
}

/// Refuses what the model's folder cannot change before the model is loaded.
void check(const GenerateArguments& arguments) {
  sampling_options(arguments, {}).validate();
  const StopStrings are_valid(arguments.stop);
  if (const int64_t tokens = arguments.tokens.value_or(0); tokens < 0)
    throw UsageError({"generate", "--tokens", fmt::format("{} is negative", tokens), "", "use 0 or more"});
  if (arguments.samples < 1) {
    throw UsageError({"generate", "--samples", fmt::format("{} is too few", arguments.samples), "", "use 1 or more"});
  }
}

bool print(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::end_token: return "end";
    case Ending::stop_string: return "stop string";
    default: return "length";
  }
}

/// One continuation as a line of JSON. Returns whether it was printed.
bool print_json(Generator& generator, const ContinuationOptions& options, const std::string& prompt, int64_t sample) {
  std::string text;
  const Continuation made = generator.run(options, [&](std::string_view more) {
    text += more;
    return true;
  });
  const nlohmann::ordered_json line{{"prompt", prompt},
                                    {"sample", sample},
                                    {"text", text},
                                    {"tokens", made.num_tokens},
                                    {"stopped", name_of(made.ending)}};
  return print(line.dump() + "\n");
}

bool print_text(Generator& generator, const ContinuationOptions& options, const std::string& prompt) {
  return print(prompt) && generator.run(options, print).ending != Ending::not_shown && print("\n");
}

void warn_of_long_prompt(const LoadedModel& loaded, const std::string& prompt) {
  const auto tokens = static_cast<int64_t>(loaded.tokenizer.encode(prompt, true).size());
  if (const int64_t context = loaded.model->config().context; tokens > context) {
    fmt::print(stderr, "caravan: the prompt has {} tokens: the model sees the last {}, its context\n", tokens, context);
  }
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check(arguments);
  const std::vector<std::string> prompts = read_prompts(arguments);
  const std::filesystem::path source = source_or_newest(arguments.source, "generate");
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one());
  const GenerationConfig settings = loaded.text.generation();
  if (!settings.ignored.empty()) {
    fmt::print(stderr, "caravan: not used from generation_config.json: {}\n", join(settings.ignored));
  }
  ContinuationOptions options{.num_tokens = arguments.tokens.value_or(Recipe::Sample().tokens),
                              .sampling = sampling_options(arguments, settings),
                              .stop_strings = arguments.stop.empty() ? settings.stop_strings : arguments.stop};
  const bool are_numbered = !arguments.prompts.empty() || arguments.samples > 1;
  int64_t number = 0;
  for (const std::string& prompt : prompts) {
    warn_of_long_prompt(loaded, prompt);
    Generator generator(*loaded.model, loaded.tokenizer, prompt, generation_tokens(loaded.text.tokens, settings));
    for (int64_t sample = 0; sample < arguments.samples; ++sample, ++number) {
      options.sampling.seed = sample_seed(arguments.seed, sample);
      if (arguments.json) {
        if (!print_json(generator, options, prompt, sample)) return 0;
        continue;
      }
      if (are_numbered && !print(fmt::format("--- {} ---\n", number))) return 0;
      if (!print_text(generator, options, prompt)) return 0;
    }
  }
  return 0;
}

}  // namespace caravan::app
