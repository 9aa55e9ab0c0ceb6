#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/chat_command.h"
#include "apps/caravan/commands/chat_prompts.h"
#include "apps/caravan/commands/model_ranks.h"
#include "apps/caravan/commands/model_source.h"
#include "apps/caravan/commands/output.h"
#include "apps/caravan/commands/prompts.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/same.h"
#include "caravan/generate/load.h"
#include "caravan/generate/stop_strings.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {
namespace {

/// The command line first, then the model's generation_config.json, then the defaults: those of transformers if the
/// file asks for sampling, else those of a recipe's sample, whose top_k does not apply beside top_p, min_p or
/// typical_p.
SamplingOptions sampling_options(const GenerateArguments& arguments, const GenerationConfig& model) {
  const Recipe::Sample ours;
  const bool model_samples = model.do_sample.value_or(false);
  SamplingOptions sampling{
      .temperature = model.temperature.value_or(model_samples ? 1.0 : ours.temperature),
      .top_p = arguments.top_p.value_or(model.top_p.value_or(model_samples ? 1.0 : ours.top_p)),
      .min_p = arguments.min_p.value_or(model.min_p.value_or(0.0)),
      .typical_p = arguments.typical_p.value_or(model.typical_p.value_or(1.0)),
      .repetition_penalty = arguments.repetition_penalty.value_or(model.repetition_penalty.value_or(1.0)),
      .frequency_penalty = arguments.frequency_penalty,
      .presence_penalty = arguments.presence_penalty,
      .seed = arguments.seed,
  };
  const bool leaves_tokens_out = sampling.top_p < 1 || sampling.min_p > 0 || sampling.typical_p < 1;
  const int64_t usual_top_k = leaves_tokens_out ? 0 : ours.top_k;
  sampling.top_k = arguments.top_k.value_or(model.top_k.value_or(model_samples ? 50 : usual_top_k));
  const bool asks_for_sampling =
      arguments.temperature || arguments.top_k || arguments.top_p || arguments.min_p || arguments.typical_p;
  if (model.do_sample == false && !asks_for_sampling) sampling.temperature = 0;
  if (arguments.temperature) sampling.temperature = *arguments.temperature;
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
  const bool samples =
      arguments.temperature || arguments.top_k || arguments.top_p || arguments.min_p || arguments.typical_p;
  if (arguments.beams > 1 && (samples || arguments.samples > 1)) {
    throw UsageError({"generate", "--beams", "searches the likeliest text, and samples none", "",
                      "leave out --samples, --temperature, --top-k, --top-p, --min-p and --typical-p"});
  }
}

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::end_token: return "end";
    case Ending::stop_string: return "stop string";
    default: return "length";
  }
}

/// Texts that grow side by side, printed in the order of their prompts: the first that has not ended as it grows.
class OrderedTexts {
 public:
  /// `shows_prompts`: where the texts continue them.
  OrderedTexts(const GenerateArguments& arguments, const std::vector<PromptText>& prompts, bool shows_prompts,
               Output& output)
      : arguments_(arguments),
        shows_prompts_(shows_prompts),
        prompts_(prompts),
        output_(output),
        are_numbered_(!arguments.prompts.empty() || arguments.samples > 1),
        parts_(prompts.size() * static_cast<size_t>(arguments.samples)) {}

  bool put(size_t number, std::string_view text) {
    parts_[number].text += text;
    return print_next();
  }
  void end(size_t number, const Continuation& made) {
    if (made.ending == Ending::not_shown) return;
    parts_[number].has_ended = true;
    parts_[number].line = arguments_.json ? line_of(number, made) : "";
    print_next();
  }

 private:
  struct Part {
    std::string text, line;
    bool has_begun = false, has_ended = false;
  };

  const PromptText& prompt_of(size_t number) const {
    return prompts_[number / static_cast<size_t>(arguments_.samples)];
  }

  std::string line_of(size_t number, const Continuation& made) const {
    const PromptText& prompt = prompt_of(number);
    nlohmann::ordered_json line;
    if (prompt.messages.empty()) {
      line["prompt"] = prompt.text;
    } else {
      line["messages"] = nlohmann::ordered_json::parse(prompt.messages);
    }
    line["sample"] = static_cast<int64_t>(number) % arguments_.samples;
    line["text"] = made.text;
    line["tokens"] = made.num_tokens;
    line["log_probabilities"] = made.log_probabilities;
    line["stopped"] = name_of(made.ending);
    return line.dump() + "\n";
  }

  bool print_next() {
    for (; next_ < parts_.size(); ++next_) {
      Part& part = parts_[next_];
      if (arguments_.json) {
        if (!part.has_ended) break;
        output_.put(part.line);
        continue;
      }
      if (!std::exchange(part.has_begun, true)) {
        output_.put((are_numbered_ ? fmt::format("--- {} ---\n", next_) : "") +
                    (shows_prompts_ ? prompt_of(next_).text : ""));
      }
      output_.put(std::exchange(part.text, ""));
      if (!part.has_ended) break;
      output_.put("\n");
    }
    return output_.put("");
  }

  const GenerateArguments& arguments_;
  bool shows_prompts_;
  const std::vector<PromptText>& prompts_;
  Output& output_;
  bool are_numbered_;
  std::vector<Part> parts_;
  size_t next_ = 0;
};

std::vector<PromptText> prompts_of_all(const GenerateArguments& arguments, Communicator& world) {
  const auto read = [&] {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const PromptText& prompt : read_prompts(arguments)) {
      all.push_back({prompt.text, prompt.where, prompt.messages, prompt.tools});
    }
    return all;
  };
  std::vector<PromptText> prompts;
  for (const auto& one : json_of_rank_0(world, read, "prompts")) {
    prompts.push_back({one.at(0), one.at(1), one.at(2), one.at(3)});
  }
  return prompts;
}

void check_prompts(const GenerateArguments& arguments, const LanguageModel& model, const std::vector<PromptText>& texts,
                   const std::vector<Prompt>& prompts) {
  const SpecialTokens special = generation_tokens(model.text().tokens, model.settings());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string& where = texts[i].where;
    if (prompts[i].text.empty() && !where.empty() && !special.begin) {
      throw UsageError({"generate", "prompt", "is empty, and the model has no token that begins a text", where,
                        "give some text to continue"});
    }
    if (!arguments.truncate) check_prompt(prompts[i], model.tokenizer(), special, model.config(), where);
  }
}

/// What the ranks do together follows from these; ranks that are started by hand may be given different ones.
void check_same_options(const GenerateArguments& arguments, Communicator& world) {
  const auto text = [](const auto& value) { return value ? fmt::format("{}", *value) : std::string("not given"); };
  check_same_on_all_ranks(world, "generate",
                          {{"--chat", fmt::format("{}", arguments.chat)},
                           {"--raw", fmt::format("{}", arguments.raw)},
                           {"--system", text(arguments.system)},
                           {"--tokens", text(arguments.tokens)},
                           {"--samples", fmt::format("{}", arguments.samples)},
                           {"--temperature", text(arguments.temperature)},
                           {"--top-k", text(arguments.top_k)},
                           {"--top-p", text(arguments.top_p)},
                           {"--min-p", text(arguments.min_p)},
                           {"--typical-p", text(arguments.typical_p)},
                           {"--repetition-penalty", text(arguments.repetition_penalty)},
                           {"--frequency-penalty", fmt::format("{}", arguments.frequency_penalty)},
                           {"--presence-penalty", fmt::format("{}", arguments.presence_penalty)},
                           {"--logit-bias", join(arguments.logit_bias)},
                           {"--stop", join(arguments.stop)},
                           {"--seed", fmt::format("{}", arguments.seed)},
                           {"--truncate", fmt::format("{}", arguments.truncate)},
                           {"--batch", fmt::format("{}", arguments.batch)},
                           {"--beams", fmt::format("{}", arguments.beams)},
                           {"--length-penalty", text(arguments.length_penalty)},
                           {"--draft", arguments.draft.empty() ? "not given" : "given"},
                           {"--draft-tokens", fmt::format("{}", arguments.draft_tokens)},
                           {"--average", fmt::format("{}", arguments.average)},
                           {"--precision", arguments.precision},
                           {"--tp, --pp, --ep", fmt::format("{}, {}, {}", arguments.tp, arguments.pp, arguments.ep)},
                           {"--offload", arguments.offload.tier}});
}

/// The model that proposes tokens, on the same ranks, in memory: it runs several times for each pass of the other.
std::optional<FrozenModel> load_draft(const GenerateArguments& arguments, const Mesh& ranks, const LoadOptions& options,
                                      const LanguageModel& model) {
  if (arguments.draft.empty()) return std::nullopt;
  std::optional<FrozenModel> draft(FrozenModel::load(arguments.draft, ranks, options));
  draft->check_companion(model.tokenizer(), model.origin(), "generate", "--draft");
  return draft;
}

void print_times(const GenerationTimes& times) {
  const auto text = [](int64_t tokens, double seconds) {
    return fmt::format("{} tokens in {:.3f} s{}", tokens, seconds,
                       tokens > 0 ? fmt::format(" ({:.1f} tokens/s)", static_cast<double>(tokens) / seconds) : "");
  };
  fmt::print(stderr, "caravan: prompts and first tokens: {}; texts: {}\n",
             text(times.prompt_tokens, times.prompt_seconds), text(times.tokens, times.seconds));
}

at::ScalarType dtype_of(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : precision == "fp16" ? at::kHalf : at::kFloat;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  check(arguments);
  const ModelRanks job(arguments.ranks, arguments.offload);
  check_same_options(arguments, job.world());
  std::vector<PromptText> texts;
  if (!arguments.chat) texts = prompts_of_all(arguments, job.world());
  const Mesh ranks = job.mesh();
  const LoadOptions split{
      .tp = arguments.tp, .pp = arguments.pp, .ep = arguments.ep, .dtype = dtype_of(arguments.precision)};
  LoadOptions of_model = split;
  of_model.weights = weights_of(arguments.average);
  LanguageModel model = job.load(source_or_newest(arguments.source, "generate"), of_model);
  const GenerationConfig& settings = model.settings();
  if (!settings.ignored.empty() && job.is_first()) {
    fmt::print(stderr, "caravan: not used from generation_config.json: {}\n", join(settings.ignored));
  }
  const std::optional<FrozenModel> draft = load_draft(arguments, ranks, split, model);
  ContinuationOptions options{
      .num_tokens = arguments.tokens.value_or(settings.max_new_tokens.value_or(Recipe::Sample().tokens)),
      .sampling = sampling_options(arguments, settings),
      .stop_strings = arguments.stop.empty() ? settings.stop_strings : arguments.stop,
      .beams = arguments.beams,
      .length_penalty = arguments.length_penalty.value_or(settings.length_penalty.value_or(1)),
      .truncate = arguments.truncate};
  options.sampling.logit_bias = logit_bias(arguments.logit_bias, model.tokenizer(), model.config().vocabulary);
  validate(options);
  GeneratorOptions together{.batch = arguments.batch, .draft_tokens = arguments.draft_tokens};
  if (arguments.times && job.is_first()) together.on_times = print_times;
  if (draft) together.draft.emplace(draft->text_model());
  Output output(job.is_first());
  if (arguments.chat) return chat(arguments, job.world(), model, options, together, output);
  const auto [are_chats, prompts] = model_prompts(arguments, model, job.world(), texts, options);
  check_prompts(arguments, model, texts, prompts);
  std::vector<Prompt> all;
  for (const Prompt& prompt : prompts) {
    for (int64_t sample = 0; sample < arguments.samples; ++sample) {
      all.push_back(prompt);
      all.back().options.sampling.seed = sample_seed(arguments.seed, sample);
    }
  }
  OrderedTexts shown(arguments, texts, !model.config().has_encoder() && !are_chats, output);
  model.generate(
      all, together, [&](size_t number, std::string_view text) { return shown.put(number, text); },
      [&](size_t number, const Continuation& made) { shown.end(number, made); });
  return 0;
}

}  // namespace caravan::app
