#include "caravan/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/generate/beams.h"
#include "caravan/generate/stop_strings.h"

namespace caravan {
namespace {

SpecialTokens tokens_of(const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  return end ? SpecialTokens{.begin = *end, .end = {*end}} : SpecialTokens{};
}

std::vector<int64_t> prompt_ids(const Tokenizer& tokenizer, std::string_view prompt, std::optional<int64_t> begin,
                                int64_t vocabulary) {
  std::vector<int64_t> ids;
  for (const int32_t id : tokenizer.encode(prompt, true)) ids.push_back(id);
  if (ids.empty() && begin) ids.push_back(*begin);
  if (ids.empty()) {
    throw UsageError({"generate", "prompt", "is empty, and the model has no token that begins a text", "",
                      "give some text to continue: --prompt TEXT"});
  }
  for (const int64_t id : ids) {
    if (id >= vocabulary) {
      throw DataError({"generate", "tokenizer", fmt::format("has token {}, the model only {}", id, vocabulary), "",
                       "use the tokenizer the model was trained with"});
    }
  }
  return ids;
}

/// What a rank that holds the logits chooses of a row of them.
TextModel::Choice choice_of(const at::Tensor& row, const SamplingOptions& sampling, std::span<const int64_t> ids,
                            size_t num_of_prompt) {
  const int64_t token = sample_token(row, sampling, static_cast<int64_t>(ids.size()), ids, ids.size() - num_of_prompt);
  return {.token = token, .log_probability = log_probability(row, token)};
}

}  // namespace

void GeneratorOptions::validate() const {
  if (batch < 1) throw UsageError({"generate", "batch", fmt::format("{} is too few", batch), "", "use 1 or more"});
  constexpr int64_t kMost = KvCache::kMostQueries - 1;
  if (draft_tokens < 1 || draft_tokens > kMost) {
    throw UsageError({"generate", "draft_tokens", fmt::format("{} is out of range", draft_tokens), "",
                      fmt::format("use 1 to {}", kMost)});
  }
}

void check_prompt(std::string_view prompt, const Tokenizer& tokenizer, const ModelConfig& config,
                  std::string_view where) {
  const int64_t context = config.has_encoder() ? config.source_context : config.context;
  const auto tokens = static_cast<int64_t>(tokenizer.encode(prompt, true).size());
  if (tokens <= context) return;
  throw UsageError(
      {"generate", "prompt", fmt::format("has {} tokens, but the context of the model is {}", tokens, context),
       std::string(where), fmt::format("shorten it, or let the model see its last {} tokens: --truncate", context)});
}

void validate(const ContinuationOptions& options) {
  options.sampling.validate();
  const StopStrings are_valid(options.stop_strings);
  const SamplingOptions& sampling = options.sampling;
  if (options.beams < 1) {
    throw UsageError({"generate", "beams", fmt::format("{} is too few", options.beams), "", "use 1 or more"});
  }
  if (!(std::abs(options.length_penalty) <= 100)) {
    throw UsageError({"generate", "length_penalty", fmt::format("{} is out of range", options.length_penalty), "",
                      "choose a value from -100 to 100"});
  }
  const bool has_others =
      sampling.frequency_penalty != 0 || sampling.presence_penalty != 0 || !sampling.logit_bias.empty();
  if (options.beams > 1 && has_others) {
    throw UsageError({"generate", "beams", "are not searched with a frequency or presence penalty or a bias", "",
                      "use the repetition penalty alone, or one beam"});
  }
}

/// A text that grows.
struct Generator::Text {
  std::vector<int64_t> source{};  ///< of a model with an encoder: the prompt
  size_t index = 0;               ///< of its prompt
  const ContinuationOptions* options = nullptr;
  size_t num_of_prompt = 0;
  std::vector<int64_t> ids{};  ///< the prompt's and the generated ones
  TextWindows::Window window{}, draft{};
  at::Tensor logits{};  ///< [vocabulary] after its ids; undefined on a rank that does not hold them
  StopStrings stop{{}};
  std::optional<TextStream> stream{};
  bool is_ended = false;
};

/// What a run has to do, and what it has done.
struct Generator::Queue {
  std::span<const Prompt> prompts;
  const ShowTexts& show;
  const OnEnd& on_end;
  std::vector<std::vector<int64_t>> ids{};  ///< of the prompts
  size_t next = 0;
  std::deque<Text> growing{};
  std::vector<Continuation> made{};
  bool is_shown = true;
  bool is_stopped = false;

  /// The model after a prompt that the next one repeats.
  struct Kept {
    size_t index;
    TextWindows::Window window;
    at::Tensor logits;
  };
  std::optional<Kept> kept{};

  void put(size_t index, const std::string& text) {
    made[index].text += text;
    if (is_shown && show) is_shown = show(index, text);
  }
};

Generator::Generator(TextModel model, Tokenizer tokenizer, std::optional<SpecialTokens> tokens,
                     GeneratorOptions options)
    : tokenizer_(std::move(tokenizer)),
      special_(tokens ? *std::move(tokens) : tokens_of(tokenizer_)),
      options_((options.validate(), std::move(options))),
      windows_(std::move(model)) {
  const ModelConfig& config = windows_.model().model.config();
  if (!config.continues_texts()) {
    throw UsageError({"generate", "model", fmt::format("{} does not continue texts", config.arch.name), "",
                      config.classes > 0 ? "use classify" : "use fill-mask, or embed"});
  }
  if (!options_.draft) return;
  if (config.has_encoder() || options_.draft->model.config().has_encoder()) {
    throw UsageError({"generate", "draft", "a model with an encoder has no draft, and is none", "", "leave it out"});
  }
  drafts_ = std::make_unique<TextWindows>(*options_.draft);
}

int64_t Generator::decoder_start() const {
  if (special_.decoder_start) return *special_.decoder_start;
  if (special_.pad) return *special_.pad;
  if (const auto pad = tokenizer_.pad_token()) return *pad;
  throw UsageError({"generate", "tokenizer", "names no token that a target starts from, and no pad token", "",
                    "name decoder_start_token_id in config.json"});
}

int64_t Generator::most_tokens(const ContinuationOptions& options) const {
  const ModelConfig& config = windows_.model().model.config();
  return config.has_encoder() ? std::min(options.num_tokens, config.context) : options.num_tokens;
}

Generator::~Generator() = default;

std::vector<Continuation> Generator::run(std::span<const Prompt> prompts, const ShowTexts& show, const OnEnd& on_end) {
  Queue queue{.prompts = prompts, .show = show, .on_end = on_end};
  const ModelConfig& config = windows_.model().model.config();
  for (const Prompt& prompt : prompts) {
    validate(prompt.options);
    queue.ids.push_back(prompt_ids(tokenizer_, prompt.text, special_.begin, config.vocabulary));
    std::vector<int64_t>& ids = queue.ids.back();
    const auto most = static_cast<size_t>(config.source_context);
    // Of a longer source the encoder sees the first tokens, and the last, which ends it.
    if (config.has_encoder() && ids.size() > most) ids.erase(ids.begin() + config.source_context - 1, ids.end() - 1);
  }
  queue.made.resize(prompts.size());
  const at::NoGradGuard no_grad;
  while (!queue.is_stopped) {
    admit(queue);
    if (queue.growing.empty()) break;
    step(queue);
    std::erase_if(queue.growing, [](const Text& text) { return text.is_ended; });
  }
  for (Text& text : queue.growing) finish(text, Ending::not_shown, queue);
  for (; queue.next < prompts.size(); ++queue.next) queue.made[queue.next].ending = Ending::not_shown;
  if (queue.kept) windows_.close(queue.kept->window);
  return std::move(queue.made);
}

void Generator::admit(Queue& queue) {
  for (; queue.next < queue.prompts.size() && std::ssize(queue.growing) < options_.batch; ++queue.next) {
    const Prompt& prompt = queue.prompts[queue.next];
    Text& text = queue.growing.emplace_back();
    text.index = queue.next;
    text.options = &prompt.options;
    text.ids = queue.ids[text.index];
    if (windows_.model().model.config().has_encoder()) text.source = std::exchange(text.ids, {decoder_start()});
    text.num_of_prompt = text.ids.size();
    text.stop = StopStrings(prompt.options.stop_strings);
    text.stream.emplace(tokenizer_, /*skip_special_tokens=*/true);
    if (drafts_) text.draft = drafts_->open(text.ids.size());
    begin(text, queue);
    if (prompt.options.num_tokens > 0 && prompt.options.beams == 1) continue;
    if (prompt.options.num_tokens > 0) search(text, queue);
    if (!text.is_ended && !queue.is_stopped) finish(text, Ending::length, queue);
    if (text.is_ended) queue.growing.pop_back();
    if (queue.is_stopped) {
      ++queue.next;
      return;
    }
  }
}

/// Lets the model see a prompt of several tokens, and keeps what the next prompt repeats.
void Generator::begin(Text& text, Queue& queue) {
  if (queue.kept && queue.ids[queue.kept->index] == queue.ids[text.index]) {
    text.window = windows_.fork(queue.kept->window);
    text.logits = queue.kept->logits;
    return;
  }
  text.window = windows_.open(text.ids.size(), text.source);
  const bool is_repeated = text.index + 1 < queue.ids.size() && queue.ids[text.index + 1] == queue.ids[text.index];
  if (text.options->num_tokens == 0 || text.options->beams > 1 ||
      (windows_.num_fresh(text.window, text.ids.size()) == 1 && !is_repeated))
    return;
  run_alone(text);
  if (!is_repeated) return;
  if (queue.kept) windows_.close(queue.kept->window);
  queue.kept = Queue::Kept{text.index, windows_.fork(text.window), text.logits};
}

/// One or more tokens of each text.
void Generator::step(Queue& queue) {
  std::vector<Text*> together, ready;
  for (Text& text : queue.growing) {
    const int64_t fresh = windows_.num_fresh(text.window, text.ids.size());
    const bool is_alone = fresh > 1 || text.window.needs_source() || windows_.most_texts(1) == 1;
    if (fresh > 0 && is_alone) run_alone(text);
    (fresh == 1 && !is_alone ? together : ready).push_back(&text);
  }
  if (drafts_) {
    for (Text* text : together) {
      if (!queue.is_stopped) speculate(*text, queue);
    }
  } else {
    const auto most = static_cast<size_t>(windows_.most_texts(1));
    for (size_t first = 0; first < together.size(); first += most) {
      std::vector<TextWindows::Text> texts;
      const std::span<Text*> some(&together[first], std::min(most, together.size() - first));
      for (Text* text : some) texts.push_back({&text->window, text->ids});
      const at::Tensor logits = windows_.run(texts);
      for (size_t i = 0; i < some.size(); ++i) {
        if (logits.defined()) some[i]->logits = logits.select(0, static_cast<int64_t>(i)).select(0, 0);
      }
    }
    ready.insert(ready.end(), together.begin(), together.end());
  }
  if (!ready.empty()) take(ready, queue);
}

void Generator::run_alone(Text& text) {
  const TextWindows::Text one{&text.window, text.ids};
  const at::Tensor logits = windows_.run({&one, 1});
  if (logits.defined()) text.logits = logits.select(0, 0).select(0, 0);
}

/// All of a text that is not sampled.
void Generator::search(Text& text, Queue& queue) {
  const BeamSearch::Options options{.beams = text.options->beams,
                                    .length_penalty = text.options->length_penalty,
                                    .num_tokens = most_tokens(*text.options),
                                    .end_tokens = special_.end};
  const BeamSearch::Beam found =
      search_beams(windows_, text.source, text.ids, options, text.options->sampling.repetition_penalty);
  std::vector<TextModel::Choice> stops(1);
  stops.front().stops = !queue.is_shown;
  queue.is_stopped = windows_.model().agree(std::move(stops)).front().stops;
  for (size_t i = 0; i < found.ids.size() && !text.is_ended && !queue.is_stopped; ++i) {
    accept(text, {.token = found.ids[i], .log_probability = found.log_probabilities[i]}, queue);
  }
  const bool has_all = static_cast<int64_t>(found.ids.size()) == options.num_tokens;
  if (!text.is_ended && !queue.is_stopped) finish(text, has_all ? Ending::length : Ending::end_token, queue);
}

/// The common choice of all ranks for the next token of each text.
void Generator::take(std::span<Text* const> texts, Queue& queue) {
  std::vector<TextModel::Choice> choices;
  for (const Text* text : texts) {
    TextModel::Choice& choice = choices.emplace_back();
    if (text->logits.defined())
      choice = choice_of(text->logits, text->options->sampling, text->ids, text->num_of_prompt);
    choice.stops = !queue.is_shown;
  }
  choices = windows_.model().agree(std::move(choices));
  for (size_t i = 0; i < texts.size(); ++i) accept(*texts[i], choices[i], queue);
}

void Generator::accept(Text& text, const TextModel::Choice& choice, Queue& queue) {
  if (choice.stops) {
    queue.is_stopped = true;
    return;
  }
  if (text.is_ended || queue.is_stopped) return;
  if (std::ranges::find(special_.end, choice.token) != special_.end.end())
    return finish(text, Ending::end_token, queue);
  Continuation& made = queue.made[text.index];
  text.ids.push_back(choice.token);
  made.log_probabilities.push_back(choice.log_probability);
  ++made.num_tokens;
  // A model's embedding may be padded past the tokenizer's last id.
  if (choice.token < tokenizer_.vocab_size()) {
    queue.put(text.index, text.stop.put(text.stream->put(static_cast<int32_t>(choice.token))));
  }
  if (text.stop.found()) return finish(text, Ending::stop_string, queue);
  if (made.num_tokens == most_tokens(*text.options)) finish(text, Ending::length, queue);
}

void Generator::finish(Text& text, Ending ending, Queue& queue) {
  Continuation& made = queue.made[text.index];
  if (ending == Ending::end_token || ending == Ending::length) {
    queue.put(text.index, text.stop.put(text.stream->finish()) + text.stop.finish());
    if (text.stop.found()) ending = Ending::stop_string;
  }
  made.ending = ending;
  if (queue.on_end) queue.on_end(text.index, made);
  text.is_ended = true;
  windows_.close(text.window);
  if (drafts_) drafts_->close(text.draft);
}

/// The ids of the text, and up to `count` tokens that the draft model would choose, by the same random numbers.
std::vector<int64_t> Generator::with_proposed(Text& text, int64_t count) {
  std::vector<int64_t> ids = text.ids;
  const int64_t known = drafts_->model().model.config().vocabulary;
  const auto is_unknown = [known](int64_t id) { return id >= known; };
  if (std::ranges::any_of(ids, is_unknown)) return ids;
  SamplingOptions sampling = text.options->sampling;
  std::erase_if(sampling.logit_bias, [&](const auto& of) { return is_unknown(of.first); });
  for (int64_t i = 0; i < count; ++i) {
    drafts_->num_fresh(text.draft, ids.size());
    const TextWindows::Text one{&text.draft, ids};
    const at::Tensor logits = drafts_->run({&one, 1});
    TextModel::Choice choice;
    if (logits.defined()) choice = choice_of(logits.select(0, 0).select(0, 0), sampling, ids, text.num_of_prompt);
    const int64_t token = drafts_->model().agree({choice}).front().token;
    if (token >= windows_.model().model.config().vocabulary) break;
    ids.push_back(token);
  }
  return ids;
}

/// Tokens up to the first that the draft did not propose. What position a token is at decides which random number it
/// is chosen by, so it is the one that the model would choose without a draft.
void Generator::speculate(Text& text, Queue& queue) {
  const int64_t left = text.options->num_tokens - queue.made[text.index].num_tokens;
  const std::vector<int64_t> ids =
      with_proposed(text, std::min({options_.draft_tokens, left - 1, windows_.room(text.window, text.ids.size())}));
  const auto count = static_cast<int64_t>(ids.size() - text.ids.size());
  const TextWindows::Text one{&text.window, ids};
  const at::Tensor logits = windows_.run({&one, 1}, count + 1);
  std::vector<TextModel::Choice> choices(static_cast<size_t>(count + 1));
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].stops = !queue.is_shown;
    if (!logits.defined()) continue;
    const std::span<const int64_t> before(ids.data(), text.ids.size() + i);
    choices[i] = choice_of(logits.select(0, 0).select(0, static_cast<int64_t>(i)), text.options->sampling, before,
                           text.num_of_prompt);
    choices[i].stops = !queue.is_shown;
  }
  choices = windows_.model().agree(std::move(choices));
  const size_t first = text.ids.size();
  for (size_t i = 0; i < choices.size() && !text.is_ended && !queue.is_stopped; ++i) {
    accept(text, choices[i], queue);
    if (first + i >= ids.size() || choices[i].token != ids[first + i]) break;
  }
  if (text.is_ended) return;
  // The last token has not been seen.
  windows_.cut(text.window, text.ids.size() - 1);
  drafts_->cut(text.draft, text.ids.size() - 1);
}

}  // namespace caravan
