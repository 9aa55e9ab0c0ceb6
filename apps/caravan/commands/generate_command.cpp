#include <charconv>
#include <cstdio>
#include <cstdlib>
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
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"
#include "caravan/generate/load.h"
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
      .min_p = arguments.min_p.value_or(model.min_p.value_or(0.0)),
      .typical_p = arguments.typical_p.value_or(model.typical_p.value_or(1.0)),
      .repetition_penalty = arguments.repetition_penalty.value_or(model.repetition_penalty.value_or(1.0)),
      .frequency_penalty = arguments.frequency_penalty,
      .presence_penalty = arguments.presence_penalty,
      .seed = arguments.seed,
  };
  const bool asks_for_sampling =
      arguments.temperature || arguments.top_k || arguments.top_p || arguments.min_p || arguments.typical_p;
  if (model.do_sample == false && !asks_for_sampling) sampling.temperature = 0;
  if (arguments.temperature) sampling.temperature = *arguments.temperature;
  if (arguments.top_k) sampling.top_k = *arguments.top_k;
  if (arguments.top_p) sampling.top_p = *arguments.top_p;
  return sampling;
}

/// TOKEN=VALUE, each: an id, or a text that is one token.
std::vector<std::pair<int64_t, double>> logit_bias(const std::vector<std::string>& pairs, const Tokenizer& tokenizer,
                                                   int64_t vocabulary) {
  std::vector<std::pair<int64_t, double>> bias;
  for (const std::string& pair : pairs) {
    const auto refuse = [&](const std::string& fact, const std::string& action) {
      throw UsageError({"generate", "--logit-bias", fmt::format("'{}' {}", pair, fact), "", action});
    };
    const size_t equals = pair.rfind('=');
    const std::string token = pair.substr(0, equals);
    const std::string number = equals == std::string::npos ? "" : pair.substr(equals + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (token.empty() || number.empty() || *end != '\0') refuse("is not TOKEN=VALUE", "write --logit-bias '42=-100'");
    int64_t id = 0;
    const char* last = token.data() + token.size();
    if (const auto parsed = std::from_chars(token.data(), last, id); parsed.ec != std::errc() || parsed.ptr != last) {
      const std::vector<int32_t> ids = tokenizer.encode(token, true);
      if (ids.size() != 1) {
        refuse(fmt::format("has a text of {} tokens", ids.size()), "give a text of one token, or the id of a token");
      }
      id = ids.front();
    }
    if (id < 0 || id >= vocabulary) {
      refuse(fmt::format("names a token that is not among {}", vocabulary), fmt::format("use 0 to {}", vocabulary - 1));
    }
    bias.emplace_back(id, value);
  }
  return bias;
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

/// Rank 0's output. Every rank makes the same text, and learns from Generator::run that the output is closed.
class Output {
 public:
  explicit Output(bool prints) : prints_(prints) {}
  /// Whether the text was printed, and all before it.
  bool put(std::string_view text) {
    if (prints_ && is_open_) is_open_ = print(text);
    return is_open_;
  }

 private:
  bool prints_;
  bool is_open_ = true;
};

/// One continuation as a line of JSON. Returns whether the output is open, as of its last token.
bool put_json(Output& output, Generator& generator, const ContinuationOptions& options, const std::string& prompt,
              int64_t sample) {
  std::string text;
  const Continuation made = generator.run(options, [&](std::string_view more) {
    text += more;
    return output.put("");
  });
  const nlohmann::ordered_json line{{"prompt", prompt},
                                    {"sample", sample},
                                    {"text", text},
                                    {"tokens", made.num_tokens},
                                    {"log_probabilities", made.log_probabilities},
                                    {"stopped", name_of(made.ending)}};
  output.put(line.dump() + "\n");
  return made.ending != Ending::not_shown;
}

bool put_text(Output& output, Generator& generator, const ContinuationOptions& options, const std::string& prompt) {
  output.put(prompt);
  const Continuation made = generator.run(options, [&](std::string_view more) { return output.put(more); });
  output.put("\n");
  return made.ending != Ending::not_shown;
}

/// The prompts that rank 0 reads: standard input is its alone.
std::vector<std::string> prompts_of_all(const GenerateArguments& arguments, Communicator& world) {
  if (world.size() == 1) return read_prompts(arguments);
  const std::string bytes = text_of_rank_0(
      world,
      [&] {
        const std::vector<uint8_t> packed = nlohmann::json::to_cbor(nlohmann::json(read_prompts(arguments)));
        return std::string(packed.begin(), packed.end());
      },
      "prompts");
  return nlohmann::json::from_cbor(bytes).get<std::vector<std::string>>();
}

void continue_prompts(const GenerateArguments& arguments, const LanguageModel& model,
                      const std::vector<std::string>& prompts, ContinuationOptions options, Output output) {
  const bool are_numbered = !arguments.prompts.empty() || arguments.samples > 1;
  int64_t number = 0;
  for (const std::string& prompt : prompts) {
    Generator generator = model.continue_text(prompt);
    for (int64_t sample = 0; sample < arguments.samples; ++sample, ++number) {
      options.sampling.seed = sample_seed(arguments.seed, sample);
      if (are_numbered && !arguments.json) output.put(fmt::format("--- {} ---\n", number));
      if (arguments.json ? !put_json(output, generator, options, prompt, sample)
                         : !put_text(output, generator, options, prompt)) {
        return;
      }
    }
  }
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check(arguments);
  plan_ranks(arguments.ranks, "", /*default_ranks=*/1);  // refuses --ranks that contradicts the environment
  const RankInfo info = RankInfo::from_environment();
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), info.local_world_size)});
  const auto store = open_store(info);
  const auto world = make_world("auto", info, store);
  const std::vector<std::string> prompts = prompts_of_all(arguments, *world);
  const LanguageModel model =
      load(source_or_newest(arguments.source, "generate"), Mesh::create(world, {{"dp", world->size()}}),
           {.tp = arguments.tp, .pp = arguments.pp, .ep = arguments.ep});
  const GenerationConfig& settings = model.settings();
  if (!settings.ignored.empty() && world->rank() == 0) {
    fmt::print(stderr, "caravan: not used from generation_config.json: {}\n", join(settings.ignored));
  }
  for (const std::string& prompt : prompts) {
    if (!arguments.truncate) check_prompt(prompt, model.tokenizer(), model.config().context);
  }
  ContinuationOptions options{.num_tokens = arguments.tokens.value_or(Recipe::Sample().tokens),
                              .sampling = sampling_options(arguments, settings),
                              .stop_strings = arguments.stop.empty() ? settings.stop_strings : arguments.stop};
  options.sampling.logit_bias = logit_bias(arguments.logit_bias, model.tokenizer(), model.config().vocabulary);
  options.sampling.validate();
  continue_prompts(arguments, model, prompts, options, Output(world->rank() == 0));
  return 0;
}

}  // namespace caravan::app
