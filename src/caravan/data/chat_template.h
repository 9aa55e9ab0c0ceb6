#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

/// A chat as a model's own template writes it.
struct RenderedChat {
  std::string text;
  /// Bytes [begin, end) of what the assistant says: from the end of the prompt that the template writes for a reply to
  /// the end of what it writes for the message.
  std::vector<std::pair<size_t, size_t>> answers;

  /// A JSON text, and back.
  std::string to_json() const;
  static RenderedChat from_json(std::string_view json);
};

/// The chat template of a model: Jinja, as Hugging Face's transformers keep it in chat_template.jinja or
/// tokenizer_config.json, with trim_blocks and lstrip_blocks. Rendered by Google's minja.
class ChatTemplate {
 public:
  /// `bos` and `eos` are the texts of the special tokens that templates name. Throws DataError naming `file` for a
  /// template that minja cannot parse.
  ChatTemplate(std::string source, const std::string& file, std::string bos, std::string eos);
  ~ChatTemplate();

  const std::string& source() const noexcept { return source_; }
  const std::string& bos() const noexcept { return bos_; }
  const std::string& eos() const noexcept { return eos_; }

  /// `messages`: [{"role": "user", "content": "Hi"}, ..]; other members are handed on. `tools`: null, or a list for the
  /// template. Throws DataError naming `where` ("chats.jsonl:3") for messages of another form, none of the assistant,
  /// those that the template refuses or cannot render, and a template that changes earlier messages when one is added:
  /// then nothing says which part of the text is whose.
  RenderedChat render(const nlohmann::json& messages, const nlohmann::json& tools, const std::string& where) const;

 private:
  struct Parsed;
  std::string render_raw(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools, bool adds_prompt,
                         const std::string& where) const;

  std::string source_;
  std::string file_;
  std::string bos_;
  std::string eos_;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace caravan
