#include "apps/caravan/commands/chat_command.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands/chat_prompts.h"
#include "apps/caravan/commands/model_ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/generate/chat.h"

namespace caravan::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kInterrupted = 130;
/// The other ranks wait for a line in a collective call, which has a time-out: they are told at least so often that
/// there is none yet.
constexpr int kBeatMs = 5000;

// Global because a signal handler has no argument to pass an object in.
std::atomic<bool> is_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not wait for a lock");

void on_interrupt(int) {
  if (is_interrupted.exchange(true)) _exit(kInterrupted);
}

constexpr const char* kReset = "/reset";
constexpr const char* kExit = "/exit";

/// One word of letters after a slash: a path has more slashes, a message more words.
bool is_like_command(std::string_view line) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return line.size() > 1 && line.front() == '/' && std::ranges::all_of(line.substr(1), is_letter);
}

/// While it lives, the first SIGINT is a request, which interrupts the wait for a line, too; a second one ends the
/// process. A write goes on: one that is cut off would look like an output that is lost.
class Interrupts {
 public:
  Interrupts() {
    is_interrupted = false;
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() { sigaction(SIGINT, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  struct sigaction before_ {};
};

/// The lines of standard input.
class Lines {
 public:
  enum class Event : uint8_t { line, end, interrupt, none_yet };

  Event next(std::string& line) {
    while (true) {
      if (is_interrupted) return Event::interrupt;
      const size_t end = begun_.find('\n');
      if (end != std::string::npos || (is_at_end_ && !begun_.empty())) {
        line = begun_.substr(0, end);
        begun_.erase(0, end == std::string::npos ? end : end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Event::line;
      }
      if (is_at_end_) return Event::end;
      pollfd entry{STDIN_FILENO, POLLIN, 0};
      const int ready = poll(&entry, 1, kBeatMs);
      if (ready == 0) return Event::none_yet;
      if (ready > 0) read_some();
    }
  }

 private:
  void read_some() {
    char some[4096];
    const ssize_t got = read(STDIN_FILENO, some, sizeof some);
    if (got > 0) begun_.append(some, static_cast<size_t>(got));
    is_at_end_ = got == 0 || (got < 0 && errno != EINTR);
  }

  std::string begun_;
  bool is_at_end_ = false;
};

/// Rank 0's part: what was said, and what the model is asked next.
class Conversation {
 public:
  Conversation(const GenerateArguments& arguments, const LanguageModel& model, Output& output)
      : arguments_(arguments),
        model_(model),
        chat_(model.chat_template()),
        output_(output),
        shows_prompt_(isatty(STDIN_FILENO) == 1) {
    reset();
  }

  /// {"text", "turn_end", "tokens"} of the next answer, {"end": exit code}, or {}: not yet.
  Json next() {
    if (!output_.put("")) return ended(0);  // it is closed
    if (!is_asked_ && shows_prompt_) output_.put("> ");
    is_asked_ = true;
    std::string line;
    switch (lines_.next(line)) {
      case Lines::Event::none_yet: return Json::object();
      case Lines::Event::interrupt: return ended(kInterrupted);
      case Lines::Event::end: return ended(0);
      case Lines::Event::line: break;
    }
    is_asked_ = false;
    if (line.find_first_not_of(" \t") == std::string::npos) return Json::object();
    if (line == kExit) return {{"end", 0}};
    if (line == kReset) {
      reset();
      return Json::object();
    }
    if (is_like_command(line)) {
      static const std::vector<std::string> kCommands{kReset, kExit};
      return refused(fmt::format("{} is not a command: the nearest is {}; a space before it makes it a message", line,
                                 nearest(line, kCommands)));
    }
    try {
      return asked(line);
    } catch (const DataError& error) {  // the template refuses it
      return refused(error.what());
    }
  }

  void answered(const Continuation& made) {
    messages_.push_back({{"role", "assistant"}, {"content", made.text}});
    if (made.ending == Ending::length) {
      refused(
          fmt::format("the answer is cut after {} tokens: --tokens or the context allows no more", made.num_tokens));
    }
  }

 private:
  void reset() { messages_ = first_messages(arguments_); }

  Json ended(int code) const {
    if (shows_prompt_) output_.put("\n");
    return {{"end", code}};
  }

  static Json refused(const std::string& why) {
    fmt::print(stderr, "caravan: {}\n", why);
    return Json::object();
  }

  Json asked(const std::string& line) {
    if (utf8_error(line) != kNoUtf8Error) return refused("the line is not UTF-8");
    Json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", line}});
    const int64_t context = model_.config().context;
    while (true) {
      std::string text = chat_->prompt(messages, nullptr, "the conversation");
      const auto tokens = std::ssize(model_.tokenizer().encode(text));
      if (tokens < context) {
        messages_ = std::move(messages);
        return {{"text", std::move(text)},
                {"turn_end", chat_->turn_end()},
                {"tokens", std::min(arguments_.tokens.value_or(context), context - tokens)}};
      }
      if (!arguments_.truncate || !drop_oldest(messages)) {
        return refused(fmt::format(
            "the conversation has {} tokens with this line, and the context of the model is {}: {}", tokens, context,
            arguments_.truncate ? "write a shorter line" : "/reset forgets it, and --truncate drops the oldest turns"));
      }
    }
  }

  /// Removes the oldest message of the user and its answer. False: there is only the last one.
  bool drop_oldest(Json& messages) const {
    const auto first = static_cast<std::ptrdiff_t>(first_messages(arguments_).size());
    auto end = messages.begin() + first + 1;
    while (end < messages.end() && end->at("role") != "user") ++end;
    if (end >= messages.end()) return false;
    messages.erase(messages.begin() + first, end);
    return true;
  }

  const GenerateArguments& arguments_;
  const LanguageModel& model_;
  std::shared_ptr<const ChatTemplate> chat_;
  Output& output_;
  bool shows_prompt_;
  bool is_asked_ = false;  ///< the prompt is shown
  Json messages_;
  Lines lines_;
};

}  // namespace

int chat(const GenerateArguments& arguments, Communicator& world, LanguageModel& model,
         const ContinuationOptions& options, const GeneratorOptions& together, Output& output) {
  if (!has_chat_template(model.text().files)) refuse_without_template(model);
  const bool is_first = world.rank() == 0;
  std::optional<Conversation> conversation;
  std::optional<Interrupts> interrupts;
  json_of_rank_0(
      world,
      [&] {
        conversation.emplace(arguments, model, output);
        interrupts.emplace();
        return Json();
      },
      "chat");
  while (true) {
    const Json next = json_of_rank_0(
        world, [&] { return conversation->next(); }, "line");
    if (next.empty()) continue;
    if (next.contains("end")) return next.at("end");
    Prompt prompt = answer_prompt(next.at("text"), next.at("turn_end").get<std::string>(), model.tokenizer(), options);
    prompt.options.num_tokens = next.at("tokens");
    // The whole conversation is read anew for each answer: templates may rewrite what came before.
    const Continuation made =
        model
            .generate({&prompt, 1}, together,
                      [&](size_t, std::string_view text) { return output.put(text) && !is_interrupted; })
            .front();
    output.put("\n");
    if (is_first) conversation->answered(made);
    is_interrupted = false;
  }
}

}  // namespace caravan::app
