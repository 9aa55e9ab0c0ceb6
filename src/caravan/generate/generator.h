#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/generate/sampling.h"
#include "caravan/generate/text_model.h"
#include "caravan/generate/text_windows.h"

namespace caravan {

struct ContinuationOptions {
  int64_t num_tokens = 120;  ///< at most
  SamplingOptions sampling{};
  std::vector<std::string> stop_strings{};  ///< the text ends before the first of them: see StopStrings
  /// More than 1: not sampled, but the likeliest text that a search of so many beams finds (BeamSearch). Of `sampling`
  /// only the repetition penalty counts; stop strings cut the text that was found.
  int64_t beams = 1;
  double length_penalty = 1;  ///< of beams: above 0 prefers long texts, below 0 short ones
  /// For LanguageModel::generate: of a prompt longer than the context, use the last tokens; of a source the first ones
  /// and the one that ends it.
  bool truncate = false;
  std::vector<int64_t> end_tokens{};  ///< end the text, beside those of the model
};

/// A text to continue, and how.
struct Prompt {
  std::string text;
  ContinuationOptions options{};
  bool is_whole = false;  ///< it has the special tokens that it needs: the tokenizer adds none, such as a second bos
};

/// Why a text ends.
enum class Ending : uint8_t {
  end_token,
  stop_string,
  length,     ///< it has ContinuationOptions::num_tokens
  not_shown,  ///< `show` returned false
};

/// Throws UsageError for options out of range.
void validate(const ContinuationOptions& options);

struct Continuation {
  std::string text{};
  int64_t num_tokens = 0;  ///< generated, including those of a stop string, without the end token
  Ending ending = Ending::length;
  std::vector<double> log_probabilities{};  ///< of each of these tokens: log-softmax of the model's own logits
};

/// Receives a text as it is generated, in well-formed UTF-8; returns false to stop.
using ShowText = std::function<bool(std::string_view text)>;
/// The same of one of several prompts; false stops all.
using ShowTexts = std::function<bool(size_t prompt, std::string_view text)>;
/// Is called when the text of a prompt has ended.
using OnEnd = std::function<void(size_t prompt, const Continuation& made)>;

/// What a run took, on this rank. The first token of a text comes with its prompt.
struct GenerationTimes {
  int64_t prompt_tokens = 0;  ///< that the model has read; a prompt that repeats the one before is read once
  double prompt_seconds = 0;  ///< of the steps that read some, and of searches by beams with all their tokens
  int64_t tokens = 0;         ///< of the texts, generated in the other steps
  double seconds = 0;         ///< of the other steps
};

struct GeneratorOptions {
  /// Prompts that are continued side by side: a step of them reads the weights once. Another takes the place of one
  /// that ends.
  int64_t batch = 1;
  /// A smaller model, which proposes tokens that the model then sees at once: it keeps those that it would have chosen
  /// itself, so that the text is the same. Of the same tokenizer; it has its own ranks' agreement.
  std::optional<TextModel> draft{};
  int64_t draft_tokens = 4;                                      ///< proposed at a time, up to 15
  std::function<void(const GenerationTimes& times)> on_times{};  ///< is called when a run has ended

  /// Throws UsageError for a value outside its range.
  void validate() const;
};

/// Throws UsageError, naming both numbers, for a prompt of more tokens than the model's context, or that of its
/// sources. `where`: its file.
void check_prompt(const Prompt& prompt, const Tokenizer& tokenizer, const SpecialTokens& special,
                  const ModelConfig& config, std::string_view where = "");

/// Continues prompts. An empty one begins with `tokens.begin`; without `tokens`, begin and end are the tokenizer's
/// end-of-text token. With an encoder, the prompt is the source, and the text is a target of up to the context's
/// tokens, which begins with `tokens.decoder_start`, else the pad token. While it lives, nothing else may run the
/// model.
///
/// A text depends on model, prompt and options alone. On the CPU each has the bits that it has alone, where a sum over
/// ranks does not depend on the number of rows (2 ranks); in fp64 and where the model adds several rows at once, a
/// product may round differently.
class Generator {
 public:
  /// Throws UsageError for options out of range, for a model that does not continue texts, and for a draft with or of a
  /// model with an encoder. The models outlive this.
  Generator(TextModel model, Tokenizer tokenizer, std::optional<SpecialTokens> tokens = {},
            GeneratorOptions options = {});
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// Generates each text until an end token, which is not shown, a stop string or the length. Prompts that are equal
  /// and follow each other share their keys and values. Of a prompt longer than the context the model sees the last
  /// tokens; when a text outgrows it, its earlier half is dropped. Every rank of the model calls it with the same
  /// prompts; `show` is called on each. Throws, before it generates: UsageError for options out of range and for an
  /// empty prompt without a begin token; DataError if the tokenizer has more tokens than the model or a prompt is not
  /// UTF-8.
  std::vector<Continuation> run(std::span<const Prompt> prompts, const ShowTexts& show = {}, const OnEnd& on_end = {});

 private:
  struct Text;
  struct Queue;
  bool has_encoder() const;
  int64_t decoder_start() const;
  /// What an encoder reads for the text: its prompt; else nothing.
  std::vector<int64_t> source_of(const Text& text, const Queue& queue) const;
  int64_t most_tokens(const ContinuationOptions& options) const;
  void admit(Queue& queue);
  void step(Queue& queue);
  void begin(Text& text, Queue& queue);
  struct Fresh {
    Text* text;
    int64_t count;  ///< ids that the model has not seen
  };
  void run_groups(std::vector<Fresh> fresh);
  void run(std::span<Text* const> texts);
  void search(Text& text, Queue& queue);
  void speculate(Text& text, Queue& queue);
  std::vector<int64_t> with_proposed(Text& text, int64_t count);
  void take(std::span<Text* const> texts, Queue& queue);
  void accept(Text& text, const TextModel::Choice& choice, Queue& queue);
  void finish(Text& text, Ending ending, Queue& queue);

  Tokenizer tokenizer_;
  SpecialTokens special_;
  GeneratorOptions options_;
  TextWindows windows_;
  std::unique_ptr<TextWindows> drafts_;  ///< or null
};

}  // namespace caravan
