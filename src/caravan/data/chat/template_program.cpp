// Runs a chat template, an untrusted program, in a separate process: exhausting stack, memory or time ends this process
// and not a rank. See template_channel.h.
#include <csignal>
#include <ctime>
#include <minja.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "caravan/data/chat/template_channel.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSocket = 0;
constexpr int kFirstOther = 3;

void set_limit(int resource, rlim_t value) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? value : std::min(limit.rlim_max, value);
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

/// Stop signals are for the parent, whose end closes the socket.
void live_apart() {
  for (const int stop : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(stop, SIG_IGN);
    // Sockets of the parent must not outlive it here.
#ifdef SYS_close_range
  syscall(SYS_close_range, kFirstOther, ~0U, 0);
#endif
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_STACK, kTemplateStack);
  set_limit(RLIMIT_AS, kTemplateMemory);
}

/// Limits the processor time from now on; exceeding it ends the process with SIGPROF.
void limit_time() {
  const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = kTemplateSeconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

/// Seconds of processor time of this process.
double processor_time() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct OutputExceeded {};
struct TimeExceeded {};

class Renderer {
 public:
  explicit Renderer(const Json& start)
      : root_(minja::Parser::parse(start.at("source").get<std::string>(),
                                   {.trim_blocks = true, .lstrip_blocks = true, .keep_trailing_newline = false})),
        bos_(start.at("bos").get<std::string>()),
        eos_(start.at("eos").get<std::string>()) {}

  /// The text, and the reply to the parent.
  std::pair<std::string, Json> render(const Json& chat) {
    chat_end_ = processor_time() + kChatSeconds;
    const Json& messages = chat.at("messages");
    const Json& tools = chat.at("tools");
    if (chat.at("prompt").get<bool>()) return {render(messages, tools, true), Json::object()};
    std::string text = render(messages, tools, false);
    Json told = Json::object();
    told["answers"] = Json::array();
    Json until = Json::array();
    std::optional<size_t> changed;  // the first message that changes the text before it
    size_t last = 0;                // the last answer
    for (size_t i = 0; i < messages.size(); ++i) {
      const bool is_answer = messages[i].at("role") == "assistant";
      if (is_answer) last = i;
      if (is_answer && !changed) {
        const std::optional<Span> answer = find_answer(messages, until, tools, text);
        if (answer) told["answers"].push_back({answer->first, answer->second});
        if (!answer) changed = i;
      }
      until.push_back(messages[i]);
    }
    if (!changed) return {std::move(text), std::move(told)};
    // Such as a template that leaves out the thoughts of earlier turns: they are input alone.
    until.erase(until.begin() + static_cast<std::ptrdiff_t>(last), until.end());
    const std::optional<Span> answer = find_answer(messages, until, tools, text);
    if (!answer) return {"", {{"changed", *changed}}};
    told["answers"] = Json::array({Json::array({answer->first, answer->second})});
    told["rewrites"] = true;
    return {std::move(text), std::move(told)};
  }

 private:
  using Span = std::pair<size_t, size_t>;

  /// Where `text`, that of all messages, has the answer to those before it. Nothing if it is not written as it was
  /// asked for.
  std::optional<Span> find_answer(const Json& messages, Json until, const Json& tools, std::string_view text) const {
    const std::string before = render(until, tools, true);
    until.push_back(messages[until.size()]);
    const bool is_last = until.size() == messages.size();
    const std::string after = is_last ? std::string(text) : render(until, tools, false);
    if (!after.starts_with(before) || !text.starts_with(after)) return std::nullopt;
    return Span{before.size(), after.size()};
  }

  std::string render(const Json& messages, const Json& tools, bool adds_prompt) const {
    if (processor_time() > chat_end_) throw TimeExceeded();
    limit_time();
    // Made anew each time: a template may change them.
    minja::Value values = minja::Value::object();
    values.set("messages", messages);
    values.set("add_generation_prompt", adds_prompt);
    values.set("bos_token", bos_);
    values.set("eos_token", eos_);
    if (!tools.is_null()) values.set("tools", tools);
    std::string text = root_->render(minja::Context::make(std::move(values)));
    if (text.size() > kMostRenderedBytes) throw OutputExceeded();
    return text;
  }

  std::shared_ptr<minja::TemplateNode> root_;
  std::string bos_;
  std::string eos_;
  double chat_end_ = 0;  ///< in processor_time()
};

/// The result of `work`; an exception becomes a reply to the parent.
std::pair<std::string, Json> guarded(const std::function<std::pair<std::string, Json>()>& work) {
  const auto memory = [] { return std::pair<std::string, Json>{"", {{"budget", "memory"}}}; };
  try {
    return work();
  } catch (const OutputExceeded&) {
    return {"", {{"budget", "output"}}};
  } catch (const TimeExceeded&) {
    return {"", {{"budget", "time"}}};
  } catch (const std::bad_alloc&) {
    return memory();
  } catch (const std::length_error&) {
    return memory();
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).starts_with("std::bad_alloc")) return memory();  // minja appends the position
    return {"", {{"error", error.what()}}};
  }
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

int serve() {
  const std::optional<std::string> start = receive_frame(kSocket);
  if (!start) return 0;
  std::unique_ptr<Renderer> renderer;
  limit_time();
  const auto [nothing, said] = guarded([&] {
    renderer = std::make_unique<Renderer>(Json::parse(*start));
    return std::pair<std::string, Json>{"", Json::object()};
  });
  if (!send_frame(kSocket, text_of(said)) || renderer == nullptr) return 0;
  while (const std::optional<std::string> chat = receive_frame(kSocket)) {
    const auto [text, told] = guarded([&] { return renderer->render(Json::parse(*chat)); });
    if (!send_frame(kSocket, text_of(told)) || !send_frame(kSocket, text)) break;
  }
  return 0;
}

}  // namespace
}  // namespace caravan

int main() {
  caravan::live_apart();
  return caravan::serve();
}
