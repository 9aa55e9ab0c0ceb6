#include "caravan/generate/generate.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/data/support.h"

namespace caravan::generate_test {
namespace {

using ::testing::HasSubstr;

const SamplingOptions kGreedy{.temperature = 0};

class Generate : public ::testing::TestWithParam<Architecture> {
 protected:
  static std::unique_ptr<Model> model(int64_t vocabulary, int64_t context = 24, uint64_t seed = 2) {
    ModelConfig config{.arch = GetParam(),
                       .layers = 2,
                       .width = 16,
                       .heads = 4,
                       .context = context,
                       .vocabulary = vocabulary,
                       .tie_embeddings = false};
    if (GetParam() == Architecture::llama()) config.kv_heads = 2;
    auto made = make_model(config);
    made->materialise(Mesh::create(make_record_world(0, 1), {{"dp", 1}}), {}, {.seed = seed});
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : made->parameters()) {
      if (parameter->sharded().dim() == 2) parameter->sharded().mul_(6);  // else every token is followed by itself
    }
    return made;
  }

  static std::string run(Model& model, const Tokenizer& tokenizer, const std::string& prompt, int64_t count,
                         const SamplingOptions& options = kGreedy, int64_t* made = nullptr) {
    std::string text;
    const int64_t n = generate(model, tokenizer, prompt, count, options, [&](std::string_view part) {
      text += part;
      return true;
    });
    if (made != nullptr) *made = n;
    return text;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, Generate, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

/// The ids of greedy generation with a full forward pass per token, over a window that drops its earlier half.
std::vector<int32_t> by_full_forwards(Model& model, std::vector<int32_t> ids, int64_t count) {
  const at::NoGradGuard no_grad;
  const auto context = static_cast<size_t>(model.config().context);
  size_t begin = ids.size() > context ? ids.size() - context : 0;
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    if (ids.size() - begin > context) begin = ids.size() - (context - context / 2);
    const std::vector<int64_t> window(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
    const at::Tensor logits =
        model.run({at::tensor(window, at::kLong).unsqueeze(0)}, {.phase = Phase::evaluate}).front();
    ids.push_back(static_cast<int32_t>(logits[0][-1].argmax().item<int64_t>()));
    made.push_back(ids.back());
  }
  return made;
}

TEST_P(Generate, WithTheCacheMatchesWithoutAlsoBeyondTheContext) {
  const Tokenizer bytes = Tokenizer::bytes();
  for (const int64_t context : {24, 7, 1}) {
    auto made = model(256, context);
    // With these weights a long context does not repeat a single token.
    const auto num_kinds = [&] {
      const std::vector<int32_t> ids = by_full_forwards(*made, bytes.encode("a"), 20);
      return std::set<int32_t>(ids.begin(), ids.end()).size();
    };
    for (uint64_t seed = 3; context == 24 && num_kinds() < 5; ++seed) {
      ASSERT_LT(seed, 50U);
      made = model(256, context, seed);
    }
    for (const std::string prompt : {"a", "Call me Ishmael. Some years ago - never mind how long"}) {
      const std::vector<int32_t> want = by_full_forwards(*made, bytes.encode(prompt), 40);
      TextStream text(bytes);
      std::string whole;
      for (const int32_t id : want) whole += text.put(id);
      whole += text.finish();
      int64_t count = 0;
      EXPECT_EQ(run(*made, bytes, prompt, 40, kGreedy, &count), whole) << "context " << context;
      EXPECT_EQ(count, 40);
    }
  }
}

TEST_P(Generate, IsAFunctionOfTheSeed) {
  const auto made = model(256);
  const Tokenizer bytes = Tokenizer::bytes();
  const SamplingOptions a{.temperature = 1, .top_k = 0, .seed = 1}, b{.temperature = 1, .top_k = 0, .seed = 2};
  EXPECT_EQ(run(*made, bytes, "abc", 30, a), run(*made, bytes, "abc", 30, a));
  EXPECT_NE(run(*made, bytes, "abc", 30, a), run(*made, bytes, "abc", 30, b));
}

TEST_P(Generate, EndsAtTheEndOfTextAndWhenItIsNoLongerShown) {
  const Tokenizer bytes = Tokenizer::bytes();
  const auto made = model(256);
  const std::vector<int32_t> ids = by_full_forwards(*made, bytes.encode("a"), 10);
  const auto first = std::find(ids.begin(), ids.end(), ids[6]) - ids.begin();  // where that id comes first
  int64_t count = 0;
  run(*made, bytes.with_end_of_text(ids[6]), "a", 10, kGreedy, &count);
  EXPECT_EQ(count, first);

  int shown = 0;
  EXPECT_EQ(generate(*made, bytes, "a", 10, kGreedy, [&](std::string_view) { return ++shown < 3; }), 3);
  EXPECT_EQ(shown, 3);
  EXPECT_EQ(run(*made, bytes, "a", 0), "");
}

TEST_P(Generate, StopsAtAnyEndTokenOfTheModelAndBeginsWithItsBeginToken) {
  const Tokenizer bytes = Tokenizer::bytes();
  const auto made = model(256);
  const auto count = [&](const std::string& prompt, const SpecialTokens& tokens) {
    return generate(
        *made, bytes.with_end_of_text(97), prompt, 10, kGreedy, [](std::string_view) { return true; }, tokens);
  };
  const std::vector<int32_t> ids = by_full_forwards(*made, bytes.encode("a"), 10);
  const auto first = std::find(ids.begin(), ids.end(), ids[6]) - ids.begin();
  EXPECT_EQ(count("a", {.end = {300, ids[6]}}), first);
  EXPECT_EQ(count("a", {}), 10) << "the model's tokens replace the tokenizer's";
  EXPECT_EQ(count("", {.begin = 97, .end = {ids[6]}}), first);
  EXPECT_THAT(message_of<UsageError>([&] { count("", {.end = {97}}); }), HasSubstr("prompt"));
}

TEST_P(Generate, AnEmptyPromptBeginsWithTheEndOfText) {
  const auto made = model(256);
  EXPECT_THAT(message_of<UsageError>([&] { run(*made, Tokenizer::bytes(), "", 5); }), HasSubstr("prompt"));
  const Tokenizer with_end = Tokenizer::bytes().with_end_of_text(97);
  int64_t count = -1;
  const std::string text = run(*made, with_end, "", 5, kGreedy, &count);
  EXPECT_EQ(text, run(*made, with_end, "a", 5));
}

TEST_P(Generate, ATokenizerOfAnotherModelIsRefused) {
  const auto made = model(90);
  EXPECT_THAT(message_of<DataError>([&] { run(*made, Tokenizer::bytes(), "zzz", 5); }), HasSubstr("has token 122"));
  EXPECT_THAT(message_of<DataError>([&] { run(*model(256), Tokenizer::bytes(), "\xff", 5); }), HasSubstr("UTF-8"));
  // A model may have more rows than the tokenizer has tokens: the extra ones print no text.
  int64_t count = 0;
  run(*model(1000), Tokenizer::bytes(), "a", 30, kGreedy, &count);
  EXPECT_EQ(count, 30);
  EXPECT_THAT(message_of<UsageError>([&] { run(*made, Tokenizer::bytes(), "a", 5, {.top_p = 2}); }),
              HasSubstr("top_p"));
}

}  // namespace
}  // namespace caravan::generate_test
