#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/generate/frozen_model.h"
#include "caravan/generate/generator.h"

namespace caravan {

class ChatTemplate;

/// What someone says in a chat.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// A language model over the ranks of a job, and what it needs to continue texts. See load().
class LanguageModel {
 public:
  /// Continues `prompt`, and returns the text after it, on every rank. Every rank calls it with the same arguments. An
  /// empty prompt begins with the model's begin token, and the text ends at its end tokens. Throws UsageError for
  /// options out of range, for a base model, and for a prompt longer than the model's context unless options.truncate;
  /// as Generator.
  std::string generate(std::string_view prompt, const ContinuationOptions& options = {});
  /// The same with the text as it is made.
  Continuation generate(std::string_view prompt, const ContinuationOptions& options, const ShowText& show);
  /// Many prompts, up to options.batch of them side by side: see Generator. Each has the text that it has alone.
  std::vector<Continuation> generate(std::span<const Prompt> prompts, const GeneratorOptions& options,
                                     const ShowTexts& show = {}, const OnEnd& on_end = {});

  /// The answer to `messages`, without what ends the turn: they are written by the model's own chat template, with its
  /// prompt for a reply, on rank 0. Every rank calls it with the same options. Throws DataError for a model without a
  /// template and for messages that the template refuses; UsageError for one that exceeds its budgets; as generate.
  std::string chat(const std::vector<ChatMessage>& messages, const ContinuationOptions& options = {});
  /// Null: its folder has none. Starts a process that renders it. Throws as ChatTemplate.
  std::shared_ptr<const ChatTemplate> chat_template() const;

  const ModelConfig& config() const noexcept { return frozen_.config(); }
  const Tokenizer& tokenizer() const { return frozen_.tokenizer(); }
  const TextSettings& text() const { return frozen_.text(); }
  const GenerationConfig& settings() const noexcept { return settings_; }  ///< of its generation_config.json
  const std::string& origin() const { return frozen_.origin(); }           ///< the folder, for messages
  /// Whether its folder has a head: else it is a base model, which has states (embed) and no logits.
  bool has_head() const { return frozen_.has_head(); }
  const Mesh& mesh() const noexcept { return frozen_.mesh(); }  ///< axes pp, dp (of size 1), ep, tp
  const Model& model() const noexcept { return frozen_.model(); }
  const Engine* engine() const noexcept { return frozen_.engine(); }  ///< null for one rank with the weights in memory
  const TextModel& text_model() const { return frozen_.text_model(); }
  /// Bytes of the parameters of this rank, wherever they rest; there are no gradients.
  int64_t parameter_bytes() const noexcept { return frozen_.parameter_bytes(); }

 private:
  friend LanguageModel load(const std::filesystem::path& source, const Mesh& mesh, const LoadOptions& options);
  explicit LanguageModel(FrozenModel frozen) : frozen_(std::move(frozen)), settings_(text().generation()) {}

  FrozenModel frozen_;
  GenerationConfig settings_;
};

/// Loads a Hugging Face folder, a run (its newest checkpoint) or a checkpoint over all ranks of `mesh`, of which only
/// the number of ranks counts, and, if `options` sets no degree, its axes pp, ep and tp. Each rank reads its pieces of
/// the weights from the files, and its memory never holds more than these and a part of one tensor; with the weights on
/// disk, one piece of a tensor and the buffers of the disk.
///
/// Every rank calls it with the same arguments. Throws, on every rank: DataError for what is missing, damaged or not
/// finite; UsageError, naming the nearest valid choice, for ranks that cannot share the model so, for ranks that found
/// different models, and for folders without a disk tier or the other way round; as DiskStore, before weights are read,
/// for folders that cannot be used or are too small; Interrupted.
LanguageModel load(const std::filesystem::path& source, const Mesh& mesh, const LoadOptions& options = {});

}  // namespace caravan
