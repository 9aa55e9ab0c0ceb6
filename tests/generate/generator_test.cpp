#include "caravan/generate/generator.h"

#include <gmock/gmock.h>
#include <set>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tests/nn/tiny.h"

namespace caravan::generator_test {
namespace {

const SamplingOptions kDrawn{.temperature = 1.5, .top_k = 0, .seed = 7};

/// A tiny model over bytes whose prompt is computed by counted forward passes.
class GeneratorTest : public ::testing::Test {
 protected:
  GeneratorTest() {
    counter_ = model_->add_hook([this](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
      positions_.push_back(inputs.front().size(1));
      return next(std::move(inputs), context);
    });
  }
  /// Always with the same weights.
  static std::unique_ptr<Model> make() {
    auto model = testing::whole_model(
        {.layers = 2, .width = 16, .heads = 4, .context = 24, .vocabulary = 256, .tie_embeddings = false});
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : model->parameters()) {
      if (parameter->sharded().dim() == 2) parameter->sharded().mul_(6);  // else every token is followed by itself
    }
    return model;
  }

  struct Text {
    std::string text;
    Continuation made;
  };
  static Text run(Generator& generator, const ContinuationOptions& options) {
    Text result;
    result.made = generator.run(options, [&](std::string_view more) {
      result.text += more;
      return true;
    });
    return result;
  }
  Text run_alone(const std::string& prompt, const ContinuationOptions& options) const {
    const std::unique_ptr<Model> model = make();
    Generator generator(*model, bytes_, prompt);
    return run(generator, options);
  }

  const Tokenizer bytes_ = Tokenizer::bytes();
  const std::unique_ptr<Model> model_ = make();
  std::vector<int64_t> positions_;  ///< of each forward pass
  Hook counter_;
};

TEST_F(GeneratorTest, FurtherSamplesUseThePromptsKeysAndValues) {
  for (const int64_t length : {5, 60}) {  // within the context, and beyond
    Generator generator(*model_, bytes_, "some prompt");
    std::set<std::string> kinds;
    for (int64_t sample = 0; sample < 4; ++sample) {
      ContinuationOptions options{.num_tokens = length, .sampling = kDrawn};
      options.sampling.seed = sample_seed(kDrawn.seed, sample);
      positions_.clear();
      const Text text = run(generator, options);
      EXPECT_EQ(positions_.size() == 4, length == 5 && sample > 0) << "one pass less where the prompt is kept";
      EXPECT_EQ(text.text, run_alone("some prompt", options).text) << sample;
      kinds.insert(text.text);
    }
    EXPECT_EQ(kinds.size(), 4U) << "each sample has its own seed";
  }
  EXPECT_EQ(sample_seed(kDrawn.seed, 0), kDrawn.seed);
}

TEST_F(GeneratorTest, EndsBeforeAStopStringOfSeveralTokens) {
  const Text whole = run_alone("a", {.num_tokens = 40, .sampling = kDrawn});
  EXPECT_EQ(whole.made.ending, Ending::length);
  ASSERT_EQ(whole.made.num_tokens, 40);
  // Characters of one byte only, so that tokens and characters are the same.
  size_t begin = 0;
  const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(whole.text.at(i)) < 0x80; };
  while (!is_ascii(begin) || !is_ascii(begin + 1)) ++begin;
  const std::string stop = whole.text.substr(begin, 2);
  begin = whole.text.find(stop);
  const Text cut = run_alone("a", {.num_tokens = 40, .sampling = kDrawn, .stop_strings = {"not there", stop}});
  EXPECT_EQ(cut.text, whole.text.substr(0, begin));
  EXPECT_EQ(cut.made.ending, Ending::stop_string);
  EXPECT_LT(cut.made.num_tokens, 40);
  // A partial stop string at the end of the text is printed.
  ContinuationOptions until_first{.num_tokens = cut.made.num_tokens - 1, .sampling = kDrawn, .stop_strings = {stop}};
  EXPECT_EQ(run_alone("a", until_first).text, whole.text.substr(0, begin + 1));
}

TEST_F(GeneratorTest, TheRepetitionPenaltySeesPromptAndText) {
  std::vector<int64_t> ids{'a', 'b', 'c'};
  const at::NoGradGuard no_grad;
  TextStream stream(bytes_);
  std::string want;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor row = at::tensor(ids, at::kLong).unsqueeze(0);
    at::Tensor logits = model_->run({row}, {.phase = Phase::evaluate}).front()[0][-1];
    const at::Tensor seen = at::tensor(ids, at::kLong);
    const at::Tensor old = logits.gather(0, seen);
    logits = logits.scatter(0, seen, at::where(old < 0, old * 1.3, old / 1.3));
    ids.push_back(logits.argmax().item<int64_t>());
    want += stream.put(static_cast<int32_t>(ids.back()));
  }
  const SamplingOptions penalised{.temperature = 0, .repetition_penalty = 1.3};
  want += stream.finish();
  EXPECT_EQ(run_alone("abc", {.num_tokens = 20, .sampling = penalised}).text, want);
  EXPECT_NE(run_alone("abc", {.num_tokens = 20, .sampling = {.temperature = 0}}).text, want);
}

}  // namespace
}  // namespace caravan::generator_test
