#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/engine/engine.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/generate/generator.h"
#include "caravan/generate/text_model.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"

namespace caravan {

/// How ranks share a model: parts of each layer (tp), of the experts (ep), stages of layers (pp). Their product is the
/// number of ranks. 0: tp takes the ranks that the others leave, pp and ep are 1.
struct LoadOptions {
  int tp = 0, pp = 0, ep = 0;
  at::ScalarType dtype = at::kFloat;  ///< of the weights in memory, and of the arithmetic: fp32, bf16 or fp16
};

/// A language model over the ranks of a job, and what it needs to continue texts. See load().
class LanguageModel {
 public:
  /// Continues `prompt`, and returns the text after it, on every rank. Every rank calls it with the same arguments. An
  /// empty prompt begins with the model's begin token, and the text ends at its end tokens. Throws UsageError for
  /// options out of range, and for a prompt longer than the model's context unless options.truncate; as Generator.
  std::string generate(std::string_view prompt, const ContinuationOptions& options = {});
  /// The same with the text as it is made.
  Continuation generate(std::string_view prompt, const ContinuationOptions& options, const ShowText& show);
  /// Many prompts, up to options.batch of them side by side: see Generator. Each has the text that it has alone.
  std::vector<Continuation> generate(std::span<const Prompt> prompts, const GeneratorOptions& options,
                                     const ShowTexts& show = {}, const OnEnd& on_end = {});

  const ModelConfig& config() const noexcept { return model_->config(); }
  const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  const TextSettings& text() const noexcept { return text_; }
  const GenerationConfig& settings() const noexcept { return settings_; }  ///< of its generation_config.json
  const std::string& origin() const noexcept { return origin_; }           ///< the folder, for messages
  const Mesh& mesh() const noexcept { return mesh_; }                      ///< axes pp, dp (of size 1), ep, tp
  const Model& model() const noexcept { return *model_; }
  const Engine* engine() const noexcept { return engine_.get(); }  ///< null on one rank
  const TextModel& text_model() const noexcept { return *text_model_; }
  /// Bytes of the parameters on this rank; there are no gradients.
  int64_t parameter_bytes() const noexcept;

 private:
  friend LanguageModel load(const std::filesystem::path& source, const Mesh& mesh, const LoadOptions& options);
  LanguageModel(Mesh mesh, std::unique_ptr<Model> model, std::unique_ptr<Engine> engine, Tokenizer tokenizer,
                TextSettings text, std::string origin);

  // In the order in which they are made.
  Mesh mesh_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TextModel> text_model_;
  Tokenizer tokenizer_;
  TextSettings text_;
  GenerationConfig settings_;
  std::string origin_;
};

/// Loads a Hugging Face folder, a run (its newest checkpoint) or a checkpoint over all ranks of `mesh`, of which only
/// the number of ranks counts, and, if `options` sets nothing, its axes pp, ep and tp. Each rank reads its pieces of
/// the weights from the files, and its memory never holds more than these and a part of one tensor.
///
/// Every rank calls it with the same arguments. Throws, on every rank: DataError for what is missing, damaged or not
/// finite; UsageError, naming the nearest valid choice, for ranks that cannot share the model so, and for ranks that
/// found different models.
LanguageModel load(const std::filesystem::path& source, const Mesh& mesh, const LoadOptions& options = {});

}  // namespace caravan
