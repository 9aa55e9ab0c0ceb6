#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/model_source.h"
#include "apps/caravan/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/checkpoint/load_model.h"
#include "caravan/generate/generate.h"

namespace caravan::app {
namespace {

bool is_pipe_with_data() {
  struct stat in {};
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  return fstat(STDIN_FILENO, &in) == 0 && S_ISFIFO(in.st_mode) && poll(&entry, 1, 0) == 1 &&
         (entry.revents & POLLIN) != 0;
}

/// Standard input is read only on request: in a loop of a shell script, or under a service manager, it is not meant for
/// this program and may never end.
std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt == "-") {
    std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  if (arguments.prompt) return *arguments.prompt;
  if (is_pipe_with_data())
    std::fputs("caravan: standard input is not read; --prompt - reads the prompt from it\n", stderr);
  return Recipe().sample.prompt;
}

/// The command line first, then the model's generation_config.json, then the defaults: transformers' where the file
/// asks for sampling, else those of a recipe's sample.
SamplingOptions sampling_options(const GenerateArguments& arguments, const GenerationConfig& model) {
  const Recipe::Sample ours;
  const bool model_samples = model.do_sample.value_or(false);
  SamplingOptions sampling{
      .temperature = model.temperature.value_or(model_samples ? 1.0 : ours.temperature),
      .top_k = model.top_k.value_or(model_samples ? 50 : ours.top_k),
      .top_p = model.top_p.value_or(model_samples ? 1.0 : ours.top_p),
      .seed = arguments.seed,
  };
  const bool asks_for_sampling = arguments.temperature || arguments.top_k || arguments.top_p;
  if (model.do_sample == false && !asks_for_sampling) sampling.temperature = 0;
  if (arguments.temperature) sampling.temperature = *arguments.temperature;
  if (arguments.top_k) sampling.top_k = *arguments.top_k;
  if (arguments.top_p) sampling.top_p = *arguments.top_p;
  return sampling;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  sampling_options(arguments, {}).validate();  // before the model is loaded
  const int64_t num_tokens = arguments.tokens.value_or(Recipe::Sample().tokens);
  if (num_tokens < 0)
    throw UsageError({"generate", "--tokens", fmt::format("{} is negative", num_tokens), "", "use 0 or more"});
  const std::filesystem::path source = source_or_newest(arguments.source, "generate");
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), 1)});
  const LoadedModel loaded = load_model(source, mesh_of_one());
  const GenerationConfig settings = loaded.text.generation();
  if (!settings.ignored.empty()) {
    fmt::print(stderr, "caravan: not used from generation_config.json: {}\n", join(settings.ignored));
  }
  const std::string prompt = prompt_of(arguments);
  const auto prompt_tokens = static_cast<int64_t>(loaded.tokenizer.encode(prompt, true).size());
  if (const int64_t context = loaded.model->config().context; prompt_tokens > context) {
    fmt::print(stderr, "caravan: the prompt has {} tokens: the model sees the last {}, its context\n", prompt_tokens,
               context);
  }
  const auto show = [](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  };
  show(prompt);
  caravan::generate(*loaded.model, loaded.tokenizer, prompt, num_tokens, sampling_options(arguments, settings), show,
                    generation_tokens(loaded.text.tokens, settings));
  show("\n");
  return 0;
}

}  // namespace caravan::app
