#include "caravan/generate/chat.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/formats/huggingface/chat_files.h"

namespace caravan {

Prompt answer_prompt(std::string text, std::string_view turn_end, const Tokenizer& tokenizer,
                     ContinuationOptions options) {
  if (const auto token = turn_end_token(turn_end, tokenizer)) {
    options.end_tokens.push_back(*token);
    return {.text = std::move(text), .options = std::move(options), .is_whole = true};
  }
  const std::vector<int32_t> ids = tokenizer.encode(turn_end);
  const auto special = std::ranges::find_if(ids, [&](int32_t id) { return tokenizer.is_special(id); });
  if (special != ids.end()) {  // texts are shown without it
    options.stop_strings.push_back(tokenizer.decode({ids.begin(), special}));
  } else if (!turn_end.empty()) {
    options.stop_strings.emplace_back(turn_end);
  }
  return {.text = std::move(text), .options = std::move(options), .is_whole = true};
}

void refuse_without_template(const LanguageModel& model) {
  throw DataError(
      {"chat", model.origin(), "has no chat template, which writes messages as text", "",
       "use a model with chat_template.jinja or chat_template in tokenizer_config.json, such as one that was "
       "trained on chats"});
}

std::shared_ptr<const ChatTemplate> LanguageModel::chat_template() const {
  return chat_template_of(text().files, origin());
}

std::string LanguageModel::chat(const std::vector<ChatMessage>& messages, const ContinuationOptions& options) {
  if (!has_chat_template(text().files)) refuse_without_template(*this);
  const auto render = [&] {
    auto said = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages) said.push_back({{"role", message.role}, {"content", message.content}});
    const auto writer = chat_template();
    return nlohmann::json{writer->prompt(said, nullptr, "messages"), writer->turn_end()}.dump();
  };
  const auto rendered = nlohmann::json::parse(text_of_rank_0(mesh().world(), render, {"chat"}));
  const Prompt one = answer_prompt(rendered.at(0), rendered.at(1).get<std::string>(), tokenizer(), options);
  return generate({&one, 1}, {}).front().text;
}

}  // namespace caravan
