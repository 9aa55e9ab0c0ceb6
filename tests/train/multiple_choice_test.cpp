#include "caravan/train/evaluation/multiple_choice.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "tests/data/support.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::multiple_choice_test {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const Tokenizer kBytes = Tokenizer::bytes();
constexpr ScoringLimits kLimits{.begin = 1, .context = 24, .vocabulary = 256};

Ids ids_of(const std::string& text) {
  const std::vector<int32_t> ids = kBytes.encode(text);
  return {ids.begin(), ids.end()};
}

TEST(EncodeContinuation, WhiteSpaceOfTheContextsEndBelongsToIt) {
  for (const std::string space : {"", " ", "  ", "\n\t ", "\u00a0", "\u3000 \u2003", "\x1f"}) {
    const ScoredText text = encode_continuation(kBytes, "abc" + space, "de", kLimits);
    EXPECT_EQ(text.ids, ids_of("abc" + space + "de"));
    EXPECT_EQ(text.num_scored, static_cast<int64_t>(space.size()) + 2) << space;
  }
  const ScoredText zero_width = encode_continuation(kBytes, "abc\u200b", "de", kLimits);
  EXPECT_EQ(zero_width.num_scored, 2) << "what Python does not strip stays with the context";
}

TEST(EncodeContinuation, BeginsWithTheBeginTokenWithoutAContext) {
  for (const std::string context : {"", "  "}) {
    const ScoredText text = encode_continuation(kBytes, context, "de", kLimits);
    Ids want = ids_of(context + "de");
    EXPECT_EQ(text.num_scored, static_cast<int64_t>(want.size()));
    want.insert(want.begin(), 1);
    EXPECT_EQ(text.ids, want);
  }
  EXPECT_THAT(message_of<DataError>([] { encode_continuation(kBytes, "", "de", {.context = 24, .vocabulary = 256}); }),
              HasSubstr("no token that begins a text"));
}

TEST(EncodeContinuation, DropsTheBeginOfWhatIsTooLong) {
  const ScoringLimits few{.begin = 1, .context = 4, .vocabulary = 256};
  const ScoredText text = encode_continuation(kBytes, "abcdef", "gh", few);
  EXPECT_EQ(text.ids, ids_of("defgh")) << "the last id is no input";
  EXPECT_EQ(text.num_scored, 2);
  EXPECT_EQ(encode_continuation(kBytes, "abcdef", "ghij", few).ids, ids_of("fghij"));
  EXPECT_THAT(message_of<DataError>([&] { encode_continuation(kBytes, "abcdef", "ghijk", few); }),
              HasSubstr("continuation: has 5 tokens, but the model sees 4 at once"));
}

/// The ids of "ab" are not those of "a" and of "b": the harness takes the ids of the whole text after the number of the
/// context's.
TEST(EncodeContinuation, TokensOfTheWholeTextFollowThoseOfTheContext) {
  const std::string_view text = "ab ab ab ab ab ab ab ab";
  const Tokenizer pairs = train_bpe(std::vector<std::string_view>{text}, 258);
  ASSERT_EQ(pairs.encode("ab").size(), 1U);
  const ScoringLimits limits{.begin = 1, .context = 24, .vocabulary = pairs.vocab_size()};
  const ScoredText scored = encode_continuation(pairs, "xa", "bx", limits);  // [x, a] and [x, ab, x]
  EXPECT_EQ(scored.num_scored, 1);
  EXPECT_EQ(pairs.decode({{static_cast<int32_t>(scored.ids.at(0)), static_cast<int32_t>(scored.ids.at(1)),
                           static_cast<int32_t>(scored.ids.at(2))}}),
            "xax");
  EXPECT_THAT(message_of<DataError>([&] { encode_continuation(pairs, "a", "b", limits); }),
              HasSubstr("continuation: adds no token to its context"));
  EXPECT_THAT(message_of<DataError>([] { encode_continuation(kBytes, "a", "z", {.context = 9, .vocabulary = 100}); }),
              HasSubstr("tokenizer: has token 122, the model only 100"));
}

class MultipleChoice : public ::testing::Test {
 protected:
  static std::unique_ptr<Model> model() {
    auto made = whole_model({.layers = 2, .width = 16, .heads = 4, .context = 24, .vocabulary = 256});
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : made->parameters()) {
      if (parameter->sharded().dim() == 2) parameter->sharded().mul_(6);  // else all tokens are almost equally likely
    }
    return made;
  }

  /// One token at a time, each from all before it.
  static double slow_log_likelihood(Model& model, const std::string& context, const std::string& choice) {
    const at::NoGradGuard no_grad;
    const Ids all = ids_of(context + choice);
    double sum = 0;
    for (size_t i = context.size(); i < all.size(); ++i) {
      const at::Tensor ids = at::tensor(Ids(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i)), at::kLong);
      const at::Tensor logits = model.run({ids.unsqueeze(0)}, {.phase = Phase::evaluate}).front()[0][-1];
      sum += at::log_softmax(logits.to(at::kDouble), 0)[all[i]].item<double>();
    }
    return sum;
  }

  static std::vector<Question> questions() {
    std::vector<Question> all;
    for (const char* context : {"The whale", "A ship", "x", "Call me", "of the sea", "1 + 1 ="}) {
      for (int64_t gold = 0; gold < 3; ++gold) all.push_back({context, {"a", " swims", " é"}, gold});
    }
    all.pop_back();  // 17, which neither 2 nor 3 divide
    return all;
  }
};

TEST_F(MultipleChoice, TheLogLikelihoodIsThatOfOneTokenAtATime) {
  const auto made = model();
  for (const std::string choice : {"i", "is", "swims far away"}) {
    const double want = slow_log_likelihood(*made, "The whale", choice);
    const double got = log_likelihood(*made, encode_continuation(kBytes, "The whale", choice, kLimits));
    EXPECT_NEAR(got, want, 1e-5 * std::abs(want)) << choice;  // fp32 logits
  }
}

/// The mean of 0s and 1s, and the sample deviation over the root of their number.
void expect_accuracy(const Accuracy& got, const std::vector<double>& right) {
  double mean = 0, squares = 0;
  const auto count = static_cast<double>(right.size());
  for (const double one : right) mean += one / count;
  for (const double one : right) squares += (one - mean) * (one - mean);
  EXPECT_DOUBLE_EQ(got.mean, mean);
  ASSERT_TRUE(got.standard_error);
  EXPECT_NEAR(*got.standard_error, std::sqrt(squares / (count - 1) / count), 1e-12);
}

TEST_F(MultipleChoice, CountsTheLikeliestChoicesOnAnyNumberOfRanks) {
  std::vector<double> plain, per_character;
  std::vector<EncodedQuestion> encoded;
  const auto made = model();
  for (const Question& question : questions()) {
    const std::vector<double> lengths{1, 6, 2};  // characters, not bytes
    std::vector<double> scores, normalised;
    for (size_t i = 0; i < 3; ++i) {
      scores.push_back(slow_log_likelihood(*made, question.context, question.choices[i]));
      normalised.push_back(scores.back() / lengths[i]);
    }
    const auto is_best = [&](const std::vector<double>& all) {
      return all[static_cast<size_t>(question.gold)] == *std::ranges::max_element(all) ? 1.0 : 0.0;
    };
    plain.push_back(is_best(scores));
    per_character.push_back(is_best(normalised));
    encoded.push_back(encode_question(kBytes, question, "", kLimits));
    EXPECT_EQ(encoded.back().lengths, lengths);
  }
  EXPECT_NE(plain, per_character) << "the length matters for some";
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const auto own = model();
                       const ChoiceResult result = evaluate_choices(*own, *world, encoded);
                       expect_accuracy(result.plain, plain);
                       expect_accuracy(result.per_character, per_character);
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

TEST_F(MultipleChoice, TheDelimiterIsScoredButHasNoLength) {
  const EncodedQuestion question = encode_question(kBytes, {"The whale", {"is", "swims"}, 1}, " ", kLimits);
  EXPECT_EQ(question.lengths, (std::vector<double>{2, 5}));
  EXPECT_EQ(question.choices[1].ids, ids_of("The whale swims"));
  EXPECT_EQ(question.choices[1].num_scored, 6);
  EXPECT_EQ(question.gold, 1);
  const auto whole = [](const std::string& context, const std::string& choice) {
    return encode_question(kBytes, {context, {choice, "other"}, 0}, {}, kLimits).choices[0].ids;
  };
  EXPECT_EQ(whole("The whale", "swims"), ids_of("The whale swims")) << "by default, a space";
  EXPECT_EQ(whole("The whale", " swims"), ids_of("The whale swims")) << "unless there is one";
  EXPECT_EQ(whole("The whale\n", "swims"), ids_of("The whale\nswims"));
  EXPECT_THAT(message_of<DataError>([] {
                encode_question(kBytes, {"a", {"b", ""}, 0}, " ", kLimits);
              }),
              HasSubstr("choices: one of them is empty"));
}

}  // namespace
}  // namespace caravan::testing::multiple_choice_test
