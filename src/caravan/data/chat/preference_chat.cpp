#include "caravan/data/chat/preference_chat.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/json_lines.h"

namespace caravan {
namespace {

using nlohmann::ordered_json;

/// Renders the answers of one line.
class PreferenceChat {
 public:
  PreferenceChat(std::string_view line, const RecordFields& fields, const ChatTemplate& chat,
                 const std::filesystem::path& file, int64_t number)
      : object_(ordered_json::parse(line)),
        fields_(fields),
        chat_(chat),
        file_(file),
        number_(number),
        where_(fmt::format("{}:{}", file.string(), number)),
        tools_(object_.value("tools", ordered_json())) {}

  Record render() {
    ordered_json chosen = messages_of(fields_.second), rejected = messages_of(fields_.third);
    ordered_json prompt = ordered_json::array();
    if (find_field(object_, fields_.first) != nullptr) {
      prompt = messages_of(fields_.first);
    } else {
      const auto end = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
      prompt.insert(prompt.end(), chosen.begin(), end.first);
      chosen.erase(chosen.begin(), end.first);
      rejected.erase(rejected.begin(), end.second);
    }
    refuse_repeated(prompt, chosen, fields_.second);
    refuse_repeated(prompt, rejected, fields_.third);
    if (prompt.empty()) {
      refuse(fmt::format("has no field {}, and its answers begin with different messages", fields_.first),
             "give the messages before the answers in that field, or in both answers");
    }
    const std::string text = chat_.prompt(prompt, tools_, where_);
    return {.line = number_,
            .first = text,
            .second = answer(prompt, chosen, text, fields_.second),
            .label = {},
            .third = answer(prompt, rejected, text, fields_.third)};
  }

 private:
  [[noreturn]] void refuse(std::string fact, std::string action) const {
    throw DataError({"data", where_, std::move(fact), "", std::move(action)});
  }

  ordered_json messages_of(const std::string& field) const {
    const ordered_json* messages = find_field(object_, field);
    if (messages == nullptr) {
      refuse(fmt::format("has no field {}", field), "give both answers, or name their fields");
    }
    if (messages->is_string()) {
      refuse(fmt::format("its field {} is a text, not a list of messages", field),
             "give messages, or no prompt if both answers are whole conversations; or set data.format = \"text\"");
    }
    if (!messages->is_array() || messages->empty()) {
      refuse(fmt::format("its field {} is no list of messages", field),
             R"(give [{"role": "assistant", "content": "Hello"}])");
    }
    return *messages;
  }

  /// Refuses an answer that begins with the prompt, which would be learned.
  void refuse_repeated(const ordered_json& prompt, const ordered_json& messages, const std::string& field) const {
    const bool repeats = !prompt.empty() && messages.size() >= prompt.size() &&
                         std::equal(prompt.begin(), prompt.end(), messages.begin());
    if (!repeats || find_field(object_, fields_.first) == nullptr) return;
    refuse(fmt::format("its field {} repeats the messages of {}", field, fields_.first),
           fmt::format("give the answer alone; or whole conversations without the field {}", fields_.first));
  }

  /// What the template writes for `messages` after `text`, that of the prompt.
  std::string answer(const ordered_json& prompt, const ordered_json& messages, const std::string& text,
                     const std::string& field) const {
    if (messages.empty()) {
      refuse(fmt::format("its field {} has no answer after the messages that both have", field),
             "give an answer of the assistant to both");
    }
    ordered_json all = prompt;
    all.insert(all.end(), messages.begin(), messages.end());
    const RenderedChat whole = chat_.render(all, tools_, where_);
    const size_t end = whole.answers.empty() ? 0 : whole.answers.back().second;
    if (!whole.text.starts_with(text) || end <= text.size()) {
      refuse(
          fmt::format("the chat template writes the messages before the answer in {} in another way than alone", field),
          "use a template that leaves earlier messages as they are, or give texts: data.format = \"text\"");
    }
    return whole.text.substr(text.size(), end - text.size());
  }

  ordered_json object_;
  const RecordFields& fields_;
  const ChatTemplate& chat_;
  const std::filesystem::path& file_;
  int64_t number_;
  std::string where_;
  ordered_json tools_;
};

}  // namespace

Record rendered_preference(std::string_view line, const RecordFields& fields, const ChatTemplate& chat,
                           const std::filesystem::path& file, int64_t number) {
  return PreferenceChat(line, fields, chat, file, number).render();
}

}  // namespace caravan
