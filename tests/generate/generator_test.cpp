#include "caravan/generate/generator.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <set>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

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

  static std::vector<Continuation> run(Model& model, const std::vector<Prompt>& prompts,
                                       GeneratorOptions options = {}) {
    return Generator(model, Tokenizer::bytes(), {}, std::move(options)).run(prompts);
  }
  static Continuation run_alone(const std::string& prompt, const ContinuationOptions& options) {
    const std::unique_ptr<Model> model = make();
    return run(*model, {{prompt, options}}).front();
  }

  const Tokenizer bytes_ = Tokenizer::bytes();
  const std::unique_ptr<Model> model_ = make();
  std::vector<int64_t> positions_;  ///< of each forward pass
  Hook counter_;
};

/// With the same bits.
void expect_same(const Continuation& a, const Continuation& b) {
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.ending, b.ending);
  EXPECT_EQ(a.num_tokens, b.num_tokens);
  EXPECT_EQ(a.log_probabilities, b.log_probabilities);
}

TEST_F(GeneratorTest, TimesCountWhatPromptsAndTextsTook) {
  const ContinuationOptions six{.num_tokens = 6, .sampling = kDrawn};
  const std::vector<Prompt> prompts{{"some prompt", six}, {"some prompt", six}, {"a sea", six}};
  for (const auto& [batch, texts] : {std::pair<int64_t, int64_t>{3, 3 * 5}, {1, 5 + 6 + 5}}) {
    std::vector<GenerationTimes> all;
    run(*model_, prompts, {.batch = batch, .on_times = [&](const GenerationTimes& times) { all.push_back(times); }});
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].prompt_tokens, 11 + 5) << "an equal prompt is read once";
    EXPECT_EQ(all[0].tokens, texts) << "first tokens come with their prompts, but for that of the second text alone";
    EXPECT_GT(all[0].prompt_seconds, 0);
    EXPECT_GT(all[0].seconds, 0);
  }
}

TEST_F(GeneratorTest, FurtherSamplesUseThePromptsKeysAndValues) {
  for (const int64_t length : {5, 60}) {  // within the context, and beyond
    for (const int64_t batch : {1, 3}) {
      std::vector<Prompt> prompts;
      for (int64_t sample = 0; sample < 4; ++sample) {
        prompts.push_back({"some prompt", {.num_tokens = length, .sampling = kDrawn}});
        prompts.back().options.sampling.seed = sample_seed(kDrawn.seed, sample);
      }
      positions_.clear();
      const std::vector<Continuation> all = run(*model_, prompts, {.batch = batch});
      EXPECT_EQ(std::ranges::count(positions_, 11), 1) << "one pass over the prompt";
      std::set<std::string> kinds;
      for (size_t i = 0; i < all.size(); ++i) {
        expect_same(all[i], run_alone("some prompt", prompts[i].options));
        kinds.insert(all[i].text);
      }
      EXPECT_EQ(kinds.size(), 4U) << "each sample has its own seed";
    }
  }
  EXPECT_EQ(sample_seed(kDrawn.seed, 0), kDrawn.seed);
}

std::vector<Prompt> many_prompts() {
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < 40; ++i) {
    Prompt& prompt = prompts.emplace_back();
    prompt.text = std::string(static_cast<size_t>(1 + i * 7 % 31), static_cast<char>('a' + i % 26));
    prompt.options.num_tokens = i * 5 % 33;
    prompt.options.sampling = i % 3 == 0 ? SamplingOptions{.temperature = 0} : kDrawn;
    prompt.options.sampling.seed = static_cast<uint64_t>(i / 2);
    if (i % 4 == 0) prompt.options.stop_strings = {"e", "\x07"};
  }
  return prompts;
}

/// Greedy and sampled, of all lengths, beyond the context, ended by stop strings: whatever grows beside it, also where
/// a product of as many rows would be another one.
TEST_F(GeneratorTest, ATextIsAsAloneInAnyBatch) {
  const std::vector<Prompt> prompts = many_prompts();
  std::vector<Continuation> alone;
  for (const Prompt& prompt : prompts) alone.push_back(run_alone(prompt.text, prompt.options));
  for (const int64_t batch : {2, 5, 30, 70}) {
    std::vector<std::string> shown(prompts.size());
    std::vector<size_t> ended;
    Generator generator(*model_, bytes_, {}, {.batch = batch});
    const std::vector<Continuation> all = generator.run(
        prompts,
        [&](size_t i, std::string_view text) {
          shown[i] += text;
          return true;
        },
        [&](size_t i, const Continuation&) { ended.push_back(i); });
    for (size_t i = 0; i < prompts.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "prompt " << i << " in a batch of " << batch);
      expect_same(all[i], alone[i]);
      EXPECT_EQ(shown[i], all[i].text);
    }
    EXPECT_FALSE(std::ranges::is_sorted(ended)) << "they end on their own";
    std::ranges::sort(ended);
    EXPECT_EQ(std::ranges::unique(ended).begin() - ended.begin(), std::ssize(prompts));
  }
}

TEST_F(GeneratorTest, PromptsOfSimilarLengthsShareAPass) {
  std::vector<Prompt> prompts;
  for (const size_t length : {18, 5, 24, 20, 17, 5, 23}) {
    prompts.push_back({std::string(length, static_cast<char>('a' + prompts.size())), {.num_tokens = 1}});
  }
  run(*model_, prompts, {.batch = 7});
  EXPECT_THAT(positions_, ::testing::ElementsAre(24, 17, 5)) << "17 is less than three quarters of 24; 5 is exact";
  positions_.clear();
  run(*model_, prompts, {.batch = 1});
  EXPECT_THAT(positions_, ::testing::ElementsAre(18, 5, 24, 20, 17, 5, 23));
}

TEST_F(GeneratorTest, AnotherPromptTakesTheFreePlace) {
  std::vector<Prompt> prompts;
  for (const int64_t length : {9, 3, 3, 3}) prompts.push_back({"a", {.num_tokens = length, .sampling = kDrawn}});
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].text = std::string(1, static_cast<char>('a' + i));
  positions_.clear();
  run(*model_, prompts, {.batch = 2});
  EXPECT_EQ(positions_.size(), 9U) << "three short texts, one after another, beside a long one";
}

/// The model's own weights, others that are close, and a shorter context.
TEST_F(GeneratorTest, WithADraftTheTextIsTheSame) {
  const std::vector<Prompt> prompts = many_prompts();
  std::vector<Continuation> plain = run(*model_, prompts, {.batch = 3});
  const Prompt one{"abc", {.num_tokens = 19, .sampling = kDrawn}};  // within the context
  /// Returns the passes that a text takes.
  const auto expect_plain = [&](Model& draft, int64_t tokens) {
    const GeneratorOptions options{.batch = 3, .draft = TextModel(draft), .draft_tokens = tokens};
    const std::vector<Continuation> all = run(*model_, prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "prompt " << i << ", " << tokens << " tokens of a draft");
      expect_same(all[i], plain[i]);
    }
    positions_.clear();
    run(*model_, {one}, options);
    return positions_.size();
  };
  const auto twin = make();
  EXPECT_EQ(expect_plain(*twin, 1), 10U) << "the prompt, and two tokens at a time";
  EXPECT_EQ(expect_plain(*twin, 5), 4U) << "the prompt, and six tokens at a time";
  const auto close = make();
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : close->parameters()) {
    if (parameter->sharded().dim() == 2) parameter->sharded().mul_(0.9);
  }
  const size_t of_close = expect_plain(*close, 5);
  EXPECT_GT(of_close, 4U) << "some proposals are wrong";
  EXPECT_LT(of_close, 19U) << "some are right";
  expect_plain(*close, 15);
  const auto shorter = testing::whole_model(
      {.layers = 1, .width = 16, .heads = 2, .context = 7, .vocabulary = 256, .tie_embeddings = false});
  EXPECT_GT(expect_plain(*shorter, 3), 12U) << "it knows nothing of the model";
  EXPECT_THAT(
      testing::error_of<UsageError>([&] { run(*model_, prompts, {.draft = TextModel(*twin), .draft_tokens = 16}); }),
      ::testing::HasSubstr("use 1 to 15"));
}

TEST_F(GeneratorTest, FalseOfShowStopsAll) {
  std::vector<Prompt> prompts(5, {"abc", {.num_tokens = 10, .sampling = kDrawn}});
  int shown = 0;
  Generator generator(*model_, bytes_, {}, {.batch = 2});
  const std::vector<Continuation> all = generator.run(prompts, [&](size_t, std::string_view) { return ++shown < 7; });
  EXPECT_LT(shown, 9);
  for (const Continuation& made : all) EXPECT_EQ(made.ending, Ending::not_shown);
  EXPECT_EQ(generator.run(prompts).back().ending, Ending::length) << "it can be used again";
}

TEST_F(GeneratorTest, EndsBeforeAStopStringOfSeveralTokens) {
  const Continuation whole = run_alone("a", {.num_tokens = 40, .sampling = kDrawn});
  EXPECT_EQ(whole.ending, Ending::length);
  ASSERT_EQ(whole.num_tokens, 40);
  // Characters of one byte only, so that tokens and characters are the same.
  size_t begin = 0;
  const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(whole.text.at(i)) < 0x80; };
  while (!is_ascii(begin) || !is_ascii(begin + 1)) ++begin;
  const std::string stop = whole.text.substr(begin, 2);
  begin = whole.text.find(stop);
  const Continuation cut = run_alone("a", {.num_tokens = 40, .sampling = kDrawn, .stop_strings = {"not there", stop}});
  EXPECT_EQ(cut.text, whole.text.substr(0, begin));
  EXPECT_EQ(cut.ending, Ending::stop_string);
  EXPECT_LT(cut.num_tokens, 40);
  // A partial stop string at the end of the text is printed.
  ContinuationOptions until_first{.num_tokens = cut.num_tokens - 1, .sampling = kDrawn, .stop_strings = {stop}};
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
