#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/generate/kv_cache.h"
#include "caravan/generate/sampling.h"
#include "caravan/generate/text_model.h"

namespace caravan {

struct ContinuationOptions {
  int64_t num_tokens = 120;  ///< at most
  SamplingOptions sampling{};
  std::vector<std::string> stop_strings{};  ///< the text ends before the first of them: see StopStrings
  bool truncate = false;  ///< for LanguageModel::generate: of a prompt longer than the context, use the last tokens
};

/// Why a text ends.
enum class Ending : uint8_t {
  end_token,
  stop_string,
  length,     ///< it has ContinuationOptions::num_tokens
  not_shown,  ///< `show` returned false
};

struct Continuation {
  int64_t num_tokens = 0;  ///< generated, including those of a stop string, without the end token
  Ending ending = Ending::length;
  std::vector<double> log_probabilities{};  ///< of each of these tokens: log-softmax of the model's own logits
};

/// Throws UsageError, naming both numbers, for a prompt of more tokens than the model's context.
void check_prompt(std::string_view prompt, const Tokenizer& tokenizer, int64_t context);

/// Continues one prompt, any number of times; its keys and values are computed in the first run and kept for the
/// others. An empty prompt begins with `tokens.begin`; without `tokens`, begin and end are the tokenizer's end-of-text
/// token. While it lives, nothing else may run the model.
class Generator {
 public:
  /// Receives the text as it is generated, in well-formed UTF-8; returns false to stop.
  using Show = std::function<bool(std::string_view text)>;

  /// Throws UsageError for an empty prompt without a begin token; DataError if the tokenizer has more tokens than the
  /// model or the prompt is not UTF-8. Of a prompt longer than the context the model sees the last tokens. The model
  /// outlives this.
  Generator(TextModel model, Tokenizer tokenizer, std::string_view prompt,
            const std::optional<SpecialTokens>& tokens = {});

  /// Generates until an end token, which is not shown, a stop string or the length. When the text outgrows the model's
  /// context, its earlier half is dropped. Every rank of the model calls it with the same options; `show` is called on
  /// each. The text depends only on model, prompt and options. Throws UsageError for options out of range.
  Continuation run(const ContinuationOptions& options, const Show& show);

 private:
  void rewind();
  at::Tensor next_logits();
  TextModel::Choice choose(const SamplingOptions& sampling, bool stops);

  TextModel model_;
  Tokenizer tokenizer_;
  SpecialTokens special_;
  std::vector<int64_t> prompt_;
  std::vector<int64_t> ids_;  ///< the prompt and the generated ids
  KvCache cache_;
  size_t first_ = 0;          ///< index of the first id in the cache
  size_t seen_ = 0;           ///< the model has seen the ids before this index
  at::Tensor prompt_logits_;  ///< after the prompt; undefined on a rank that does not hold them
};

}  // namespace caravan
