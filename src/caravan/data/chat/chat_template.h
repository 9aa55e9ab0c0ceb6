#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

/// A chat rendered by a model's own template.
struct RenderedChat {
  std::string text;
  /// Bytes [begin, end) of the assistant's text: from the end of the prompt that the template writes for a reply to the
  /// end of what it writes for the message.
  std::vector<std::pair<size_t, size_t>> answers;
  /// The template rewrites earlier messages when one is added, so that only the last answer follows what the model is
  /// given when it answers: the answers before are not among these.
  bool has_last_alone = false;
  /// Of the answers, those of messages without content: only what ends them is learned. Not part of the JSON text.
  int64_t num_empty = 0;

  /// Converts to and from JSON text.
  std::string to_json() const;
  static RenderedChat from_json(std::string_view json);
};

class TemplateProcess;

/// The chat template of a model: Jinja, as Hugging Face's transformers keep it in chat_template.jinja or
/// tokenizer_config.json, with trim_blocks and lstrip_blocks. Rendered by Google's minja, in a separate process, since
/// a template is an untrusted program. It has budgets of processor time, memory, stack and output; exceeding one throws
/// UsageError naming `file` and the budget. Threads take turns.
class ChatTemplate {
 public:
  /// `bos` and `eos` are the texts of the special tokens that templates name. Throws DataError naming `file` for a
  /// template that minja cannot parse, UsageError for one that exceeds a budget in parsing or in rendering a chat of
  /// two messages.
  ChatTemplate(std::string source, std::string file, std::string bos, std::string eos);
  ~ChatTemplate();

  const std::string& source() const noexcept { return source_; }
  const std::string& bos() const noexcept { return bos_; }
  const std::string& eos() const noexcept { return eos_; }
  /// What it writes after the content of an answer, without white space at its ends: "<|im_end|>". "" if it writes
  /// nothing or no such answer.
  const std::string& turn_end() const noexcept { return turn_end_; }

  /// What a model continues with its answer: `messages` and the template's prompt for a reply. The special tokens that
  /// a text begins with are in it, if the template writes them. Arguments and errors are those of render, but no
  /// message need be the assistant's.
  std::string prompt(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     const std::string& where) const;

  /// `messages`: [{"role": "user", "content": "Hi"}, ..]; other members are passed on. `tools`: null, or a list for the
  /// template. The order of members is kept, since templates write it. Throws DataError naming `where`
  /// ("chats.jsonl:3") for messages of another form, without an assistant's message, or that the template refuses or
  /// cannot render, and for a template that does not even write the last answer after its own prompt for it: then the
  /// author of each part of the text is unknown.
  RenderedChat render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                      const std::string& where) const;

 private:
  struct Answer;
  enum class Part : uint8_t { chat, prompt };
  void start() const;
  Answer ask(Part part, const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
             const std::string& where) const;
  std::string checked_text(Answer answer, const std::string& where) const;
  [[noreturn]] void refuse_budget(const std::string& excess, const std::string& where) const;

  std::string source_;
  std::string file_;
  std::string bos_;
  std::string eos_;
  std::string turn_end_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<TemplateProcess> process_;  ///< null: exceeded a budget
};

}  // namespace caravan
