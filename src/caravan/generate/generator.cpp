#include "caravan/generate/generator.h"

#include <algorithm>
#include <chrono>
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

/// What the model is given for a prompt, before it is cut.
std::vector<int64_t> ids_of(const Tokenizer& tokenizer, const Prompt& prompt, const SpecialTokens& special) {
  std::vector<int64_t> ids;
  for (const int32_t id : tokenizer.encode(prompt.text, !prompt.is_whole)) ids.push_back(id);
  if (prompt.is_whole) return ids;
  if (ids.empty() && special.begin) ids.push_back(*special.begin);
  if (special.prompt_end && (ids.empty() || ids.back() != *special.prompt_end)) ids.push_back(*special.prompt_end);
  return ids;
}

std::vector<int64_t> prompt_ids(const Tokenizer& tokenizer, const Prompt& prompt, const SpecialTokens& special,
                                int64_t vocabulary) {
  std::vector<int64_t> ids = ids_of(tokenizer, prompt, special);
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

/// The tokens that end a text.
std::vector<int64_t> ends_of(const SpecialTokens& special, const ContinuationOptions& options) {
  std::vector<int64_t> ends = special.end;
  ends.insert(ends.end(), options.end_tokens.begin(), options.end_tokens.end());
  return ends;
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

void check_prompt(const Prompt& prompt, const Tokenizer& tokenizer, const SpecialTokens& special,
                  const ModelConfig& config, std::string_view where) {
  const int64_t context = config.has_encoder() ? config.source_context : config.context;
  const auto tokens = std::ssize(ids_of(tokenizer, prompt, special));
  if (tokens <= context) return;
  throw UsageError({"generate", "prompt",
                    fmt::format("has {} tokens, but the {} of the model is {}", tokens,
                                config.has_encoder() ? "source context" : "context", context),
                    std::string(where),
                    fmt::format("shorten it, or let the model see its {} {} tokens: --truncate",
                                config.has_encoder() ? "first" : "last", context)});
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
  size_t index = 0;  ///< of its prompt
  const ContinuationOptions* options = nullptr;
  size_t num_of_prompt = 0;
  std::vector<int64_t> ids{};  ///< the prompt's and the generated ones
  TextWindows::Window window{}, draft{};
  at::Tensor logits{};  ///< [vocabulary] after its ids; undefined on a rank that does not hold them
  std::vector<int64_t> ends{};
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

  GenerationTimes times{};
  int64_t prompt_tokens = 0, tokens = 0;  ///< of this step
  std::chrono::steady_clock::time_point step_began = std::chrono::steady_clock::now();

  void count_step() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - std::exchange(step_began, now)).count();
    if (prompt_tokens > 0) {
      times.prompt_tokens += prompt_tokens;
      times.prompt_seconds += seconds;
    } else {
      times.tokens += tokens;
      times.seconds += seconds;
    }
    prompt_tokens = tokens = 0;
  }

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
  if (!options_.draft->model.config().continues_texts()) {
    throw UsageError({"generate", "draft",
                      fmt::format("{} does not continue texts", options_.draft->model.config().arch.name), "",
                      "use a smaller model of the same family"});
  }
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

bool Generator::has_encoder() const { return windows_.model().model.config().has_encoder(); }

std::vector<int64_t> Generator::source_of(const Text& text, const Queue& queue) const {
  return has_encoder() ? queue.ids[text.index] : std::vector<int64_t>();
}

int64_t Generator::most_tokens(const ContinuationOptions& options) const {
  return has_encoder() ? std::min(options.num_tokens, windows_.cache().context()) : options.num_tokens;
}

Generator::~Generator() = default;

std::vector<Continuation> Generator::run(std::span<const Prompt> prompts, const ShowTexts& show, const OnEnd& on_end) {
  Queue queue{.prompts = prompts, .show = show, .on_end = on_end};
  const ModelConfig& config = windows_.model().model.config();
  for (const Prompt& prompt : prompts) {
    validate(prompt.options);
    queue.ids.push_back(prompt_ids(tokenizer_, prompt, special_, config.vocabulary));
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
    queue.count_step();
    std::erase_if(queue.growing, [](const Text& text) { return text.is_ended; });
  }
  for (Text& text : queue.growing) finish(text, Ending::not_shown, queue);
  for (; queue.next < prompts.size(); ++queue.next) queue.made[queue.next].ending = Ending::not_shown;
  if (queue.kept) windows_.close(queue.kept->window);
  queue.count_step();
  if (options_.on_times) options_.on_times(queue.times);
  return std::move(queue.made);
}

void Generator::admit(Queue& queue) {
  for (; queue.next < queue.prompts.size() && std::ssize(queue.growing) < options_.batch; ++queue.next) {
    const Prompt& prompt = queue.prompts[queue.next];
    Text& text = queue.growing.emplace_back();
    text.index = queue.next;
    text.options = &prompt.options;
    text.ids = has_encoder() ? std::vector{decoder_start()} : queue.ids[text.index];
    text.num_of_prompt = text.ids.size();
    text.ends = ends_of(special_, prompt.options);
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

/// Of a prompt that the next one repeats, the model's state is kept.
void Generator::begin(Text& text, Queue& queue) {
  if (queue.kept && queue.ids[queue.kept->index] == queue.ids[text.index]) {
    text.window = windows_.fork(queue.kept->window);
    text.logits = queue.kept->logits;
    return;
  }
  text.window = windows_.open(text.ids.size(), source_of(text, queue));
  const int64_t most = has_encoder() ? windows_.model().model.config().source_context : windows_.cache().context();
  if (text.options->num_tokens > 0) queue.prompt_tokens += std::min(most, std::ssize(queue.ids[text.index]));
  const bool is_repeated = text.index + 1 < queue.ids.size() && queue.ids[text.index + 1] == queue.ids[text.index];
  if (text.options->num_tokens == 0 || text.options->beams > 1 || !is_repeated) return;
  Text* one = &text;
  run({&one, 1});
  if (queue.kept) windows_.close(queue.kept->window);
  queue.kept = Queue::Kept{text.index, windows_.fork(text.window), text.logits};
}

/// One or more tokens of each text.
void Generator::step(Queue& queue) {
  std::vector<Text*> ready, proposed;
  std::vector<Fresh> fresh;
  for (Text& text : queue.growing) {
    const int64_t count = windows_.num_fresh(text.window, text.ids.size());
    const bool is_proposed = drafts_ && count == 1;
    (is_proposed ? proposed : ready).push_back(&text);
    if (!is_proposed && count > 0) fresh.push_back({&text, count});
  }
  run_groups(std::move(fresh));
  for (Text* text : proposed) {
    if (!queue.is_stopped) speculate(*text, queue);
  }
  if (!ready.empty()) take(ready, queue);
}

/// Texts of equal or similar numbers of fresh ids share a pass: the longest first.
void Generator::run_groups(std::vector<Fresh> fresh) {
  std::ranges::stable_sort(fresh, std::ranges::greater(), &Fresh::count);
  for (auto first = fresh.begin(); first != fresh.end();) {
    const auto most = std::min<std::ptrdiff_t>(windows_.most_texts(first->count), fresh.end() - first);
    const auto end = std::find_if(first + 1, first + most, [&](const Fresh& other) {
      return !windows_.go_together(first->text->window, first->count, other.text->window, other.count);
    });
    std::vector<Text*> texts;
    for (; first != end; ++first) texts.push_back(first->text);
    run(texts);
  }
}

void Generator::run(std::span<Text* const> texts) {
  std::vector<TextWindows::Text> inputs;
  for (Text* text : texts) inputs.push_back({&text->window, text->ids});
  const at::Tensor logits = windows_.run(inputs);
  for (size_t i = 0; i < texts.size() && logits.defined(); ++i) {
    texts[i]->logits = logits.select(0, static_cast<int64_t>(i)).select(0, 0);
  }
}

/// All of a text that is not sampled.
void Generator::search(Text& text, Queue& queue) {
  const BeamSearch::Options options{.beams = text.options->beams,
                                    .length_penalty = text.options->length_penalty,
                                    .num_tokens = most_tokens(*text.options),
                                    .end_tokens = ends_of(special_, *text.options)};
  std::vector<int64_t> seen = text.ids;
  const int64_t room = windows_.cache().context() + 1 - options.num_tokens;  // the last token is not seen
  if (text.options->truncate && room > 0 && std::ssize(seen) > room) seen.erase(seen.begin(), seen.end() - room);
  const BeamSearch::Beam found =
      search_beams(windows_, source_of(text, queue), seen, options, text.options->sampling.repetition_penalty);
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
  if (std::ranges::find(text.ends, choice.token) != text.ends.end()) return finish(text, Ending::end_token, queue);
  Continuation& made = queue.made[text.index];
  text.ids.push_back(choice.token);
  made.log_probabilities.push_back(choice.log_probability);
  ++made.num_tokens;
  ++queue.tokens;
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
