#include "caravan/data/tasks/masked_task.h"

#include <cmath>
#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/task_support.h"

namespace caravan::masked_task_test {
namespace {

using namespace testing;  // NOLINT: helpers of tests
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 422;  // of the fixture of BERT, whose special tokens are 0 to 4
constexpr int64_t kCls = 2, kSep = 3, kMask = 4;

bool is_special(int64_t id) { return id <= 4; }

/// Random ids: of words, pieces and, every tenth, a special token.
class Masked : public ::testing::Test {
 protected:
  Masked() : bert(family("bert_uncased")) {
    const RandomStream random(5, "ids");
    for (uint64_t i = 0; i < 6000; ++i) {
      const bool is_of_text = random.bits(2 * i) % 10 != 0;
      ids.push_back(static_cast<int32_t>(is_of_text ? 5 + random.bits(2 * i + 1) % 417 : random.bits(2 * i + 1) % 5));
    }
    tokens.emplace(token_file(folder, ids, kVocabulary));
    const auto file = nlohmann::json::parse(bert.to_json());
    for (const auto& [token, id] : file["model"]["vocab"].items()) {
      if (token.starts_with("##")) pieces.insert(id.get<int64_t>());
    }
  }

  WindowTaskRows rows(int64_t context, const MaskRule& rule = {}, uint64_t seed = 3) const {
    auto task = std::make_shared<const MaskedTask>(bert, context, rule);
    return {TrainWindows({{&*tokens}}, task->window(), seed), task, seed};
  }
  /// The window of a sample, as the sampler has it.
  Ids window(int64_t context, int64_t sample, uint64_t seed = 3) const {
    const Sampler sampler(tokens->size(), context - 2, seed);
    const auto begin = ids.begin() + sampler.offset(sample);
    return {begin, begin + context - 2};
  }

  const Tokenizer bert;
  const TemporaryFolder folder;
  std::vector<int32_t> ids;
  std::optional<TokenFile> tokens;
  std::set<int64_t> pieces;
};

/// max(1, round(0.15 n)) by Python, whose round goes half to even: BERT's number of predictions.
TEST_F(Masked, RowsHaveTheNumberOfTargetsOfBert) {
  for (const auto& [context, want] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 1}, {4, 1}, {8, 1}, {10, 2}, {16, 2}, {30, 4}, {50, 8}, {70, 10}, {128, 19}, {510, 76}, {512, 77}}) {
    const WindowTaskRows masked = rows(context);
    for (int64_t sample = 0; sample < 40; ++sample) {
      const FilledRows row = filled(masked, sample, 1);
      Ids text = window(context, sample);
      const int64_t candidates = context - 2 - std::ranges::count_if(text, is_special);
      const int64_t num_targets = context - std::ranges::count(row.labels, kIgnoredLabel);
      EXPECT_EQ(num_targets, std::min(want, candidates)) << context << " sample " << sample;
      EXPECT_EQ(masked.num_targets(sample, 1), num_targets);
      // With the originals put back, the row is the window between [CLS] and [SEP].
      Ids restored = row.ids;
      for (size_t t = 0; t < restored.size(); ++t) {
        if (row.labels[t] == kIgnoredLabel) continue;
        restored[t] = row.labels[t];
        EXPECT_FALSE(is_special(row.labels[t])) << "a special token is chosen";
      }
      text.insert(text.begin(), kCls);
      text.push_back(kSep);
      EXPECT_EQ(restored, text);
    }
  }
  EXPECT_EQ(rows(512).position(3), 3 * 512);
}

/// Each target becomes [MASK] with probability 0.8 and a random token with 0.1. Shares of 28,500 targets are within 5
/// standard deviations of that.
TEST_F(Masked, EightyTenTen) {
  const WindowTaskRows masked = rows(128);
  const FilledRows all = filled(masked, 0, 1500);
  int64_t num_targets = 0, num_masked = 0, num_same = 0;
  std::map<int64_t, int64_t> others;
  for (size_t t = 0; t < all.ids.size(); ++t) {
    if (all.labels[t] == kIgnoredLabel) continue;
    ++num_targets;
    num_masked += all.ids[t] == kMask ? 1 : 0;
    num_same += all.ids[t] == all.labels[t] ? 1 : 0;
    if (all.ids[t] != kMask && all.ids[t] != all.labels[t]) ++others[all.ids[t]];
  }
  const auto n = static_cast<double>(num_targets);
  EXPECT_GT(num_targets, 28'000);
  const auto expect_share = [&](int64_t count, double share) {
    EXPECT_NEAR(static_cast<double>(count) / n, share, 5 * std::sqrt(share * (1 - share) / n));
  };
  expect_share(num_masked, 0.8 + 0.1 / kVocabulary);
  expect_share(num_same, 0.1 + 0.1 / kVocabulary);
  EXPECT_GT(others.size(), 415U) << "all of the vocabulary";
  for (const auto& [id, count] : others) EXPECT_LT(count, 40) << id;  // 6.8 expected
}

/// Positions of the window that are chosen equally often: 0.15 n of n.
TEST_F(Masked, EveryPositionIsChosen) {
  const FilledRows all = filled(rows(20), 0, 4000);
  for (size_t t = 0; t < 20; ++t) {
    int64_t count = 0;
    for (size_t row = 0; row < 4000; ++row) count += all.labels[row * 20 + t] == kIgnoredLabel ? 0 : 1;
    if (t == 0 || t == 19) {
      EXPECT_EQ(count, 0) << "[CLS] and [SEP]";
    } else {
      EXPECT_NEAR(static_cast<double>(count), 4000.0 * 3 / 18, 150) << t;  // 5 standard deviations are 118
    }
  }
}

TEST_F(Masked, WholeWordsAreNeverSplit) {
  for (const int64_t context : {3, 5, 16, 64, 128}) {
    const WindowTaskRows masked = rows(context, {.rate = 0.2, .whole_words = true});
    const auto most = std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(0.2 * static_cast<double>(context))));
    int64_t num_full = 0;
    for (int64_t sample = 0; sample < 200; ++sample) {
      const FilledRows row = filled(masked, sample, 1);
      const Ids text = window(context, sample);
      int64_t count = 0;
      for (size_t t = 0; t < text.size(); ++t) {
        const bool is_chosen = row.labels[t + 1] != kIgnoredLabel;
        count += is_chosen ? 1 : 0;
        if (t == 0 || !pieces.contains(text[t]) || is_special(text[t - 1])) continue;
        EXPECT_EQ(is_chosen, row.labels[t] != kIgnoredLabel) << "a word is split at " << t;
      }
      EXPECT_LE(count, most);
      EXPECT_EQ(masked.num_targets(sample, 1), count);
      num_full += count == most ? 1 : 0;
    }
    EXPECT_GT(num_full, context < 16 ? 20 : 190) << context;
  }
}

/// The words of other tokenizers begin where their files say.
TEST_F(Masked, WordsAreThoseOfTheTokenizersFile) {
  const auto words = [](const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<WordPart> parts = word_parts(tokenizer);
    std::string shown;
    for (const int32_t id : tokenizer.encode(text)) {
      const WordPart part = parts[static_cast<size_t>(id)];
      shown += part == WordPart::begins ? "|" : part == WordPart::special ? "!" : "";
      shown += tokenizer.token_bytes(id);
    }
    return shown;
  };
  EXPECT_EQ(words(family("bert_uncased"), "the landlords [SEP] room"), "| the| landlords![SEP]| room");
  EXPECT_EQ(words(family("roberta"), " he said, there"), "| he| said,| there");
  EXPECT_EQ(words(family("t5"), "the squares"), "| the| squares");
  EXPECT_EQ(words(word_tokenizer(1), "w1 w2 <extra_id_0>"), "|w1|w2!<extra_id_0>");
  EXPECT_EQ(words(family("llama2"), "the squares"), "| the| squares") << "spaces are replaced by its normalizer";
  for (const char* ends_words : {"openai_gpt", "clip"}) {
    EXPECT_THAT(message_of<UsageError>([&] { word_parts(family(ends_words)); }), HasSubstr("data.whole_words"));
  }
}

TEST_F(Masked, RowsDependOnTheSampleAlone) {
  for (const bool whole_words : {false, true}) {
    const WindowTaskRows masked = rows(32, {.whole_words = whole_words});
    const FilledRows whole = filled(masked, 24, 12);
    for (const int64_t ranks : {2, 3, 4, 12}) {
      Ids ids, labels;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const FilledRows part = filled(masked, 24 + rank * 12 / ranks, 12 / ranks);
        ids.insert(ids.end(), part.ids.begin(), part.ids.end());
        labels.insert(labels.end(), part.labels.begin(), part.labels.end());
      }
      EXPECT_EQ(ids, whole.ids);
      EXPECT_EQ(labels, whole.labels);
    }
    const FilledRows again = filled(rows(32, {.whole_words = whole_words}), 24, 12);
    EXPECT_EQ(again.ids, whole.ids) << "after a restart";
    EXPECT_NE(filled(rows(32, {.whole_words = whole_words}, 4), 24, 12).ids, whole.ids) << "another seed";
    EXPECT_EQ(masked.num_targets(24, 12), std::ssize(whole.labels) - std::ranges::count(whole.labels, kIgnoredLabel));
  }
}

/// A window comes again in a later epoch, with other masks.
TEST_F(Masked, MasksDifferBetweenEpochs) {
  const std::vector<int32_t> text(33, 7);
  const TemporaryFolder other;
  const TokenFile same = token_file(other, text, kVocabulary);
  auto task = std::make_shared<const MaskedTask>(bert, 32, MaskRule{});
  const WindowTaskRows masked(TrainWindows({{&same}}, 30, 3), task, 3);
  std::set<Ids> seen;
  for (int64_t sample = 0; sample < 50; ++sample) seen.insert(filled(masked, sample, 1).labels);
  EXPECT_GT(seen.size(), 45U);
}

TEST_F(Masked, ValidationIsAlwaysTheSame) {
  auto task = std::make_shared<const MaskedTask>(bert, 32, MaskRule{});
  const WindowTaskValidation validation(*tokens, task);
  EXPECT_EQ(validation.size(), 200);
  EXPECT_EQ(validation.text_bytes(), 0) << "bits per byte mean nothing";
  int64_t num_targets = 0;
  for (int64_t row = 0; row < 203; ++row) {
    const FilledRows one = filled(validation, row, 1);
    const int64_t own = 32 - std::ranges::count(one.labels, kIgnoredLabel);
    num_targets += own;
    EXPECT_EQ(own > 0, row < 200);
    EXPECT_EQ(filled(WindowTaskValidation(*tokens, task), row, 1).ids, one.ids);
  }
  EXPECT_EQ(validation.num_targets(), num_targets);
  // The last row ends with the text.
  const std::vector<int32_t> text(ids.begin(), ids.begin() + 31);
  const TemporaryFolder other;
  const TokenFile short_text = token_file(other, text, kVocabulary);
  const WindowTaskValidation two(short_text, task);
  EXPECT_EQ(two.size(), 2);
  FilledRows last = filled(two, 1, 1);
  for (size_t t = 0; t < 32; ++t) {
    if (last.labels[t] != kIgnoredLabel) last.ids[t] = last.labels[t];
  }
  EXPECT_EQ(part_of(last.ids, 1, 30), (Ids{text.begin() + 1, text.end()}));
  EXPECT_THAT(message_of<DataError>(
                  [&] { WindowTaskValidation(short_text, std::make_shared<const MaskedTask>(bert, 34, MaskRule{})); }),
              HasSubstr("has 31 tokens, but a row of the task takes 32"));
}

/// A tokenizer without [CLS] and [SEP] has rows of text alone.
TEST_F(Masked, SpecialTokensStandAroundIfThereAreBoth) {
  EXPECT_EQ(MaskedTask(bert, 16, {}).window(), 14);
  EXPECT_EQ(MaskedTask(family("roberta"), 16, {}).window(), 16) << "the file alone does not name its cls_token";
  const MaskedTask roberta(family("roberta"), 4, {});
  Ids row(4), labels(4);
  roberta.fill(Ids{5, 6, 7, 8}, 1, 0, {.ids = row, .labels = labels});
  EXPECT_EQ(std::ranges::count(labels, kIgnoredLabel), 3);
}

TEST_F(Masked, RefusesWhatCannotBeMasked) {
  EXPECT_THAT(message_of<UsageError>([] { MaskedTask(Tokenizer::bytes(), 16, {}); }), HasSubstr("mask token"));
  EXPECT_THAT(message_of<ShapeError>([&] { MaskedTask(bert, 2, {}); }), HasSubstr("model.context: is 2"));
  EXPECT_THROW(filled(rows(8), -1, 0).ids.at(0), std::out_of_range);
  Ids ids_of_row(8), too_few(7);
  EXPECT_THROW(rows(8).fill(0, {.ids = ids_of_row, .labels = too_few}), ShapeError);
  // A window of special tokens alone has no targets.
  const MaskedTask task(bert, 5, {});
  Ids row(5), labels(5);
  task.fill(Ids{0, 1, 4}, 1, 0, {.ids = row, .labels = labels});
  EXPECT_EQ(row, (Ids{kCls, 0, 1, 4, kSep}));
  EXPECT_EQ(labels, Ids(5, kIgnoredLabel));
  EXPECT_EQ(task.num_targets(Ids{0, 1, 4}, 1, 0), 0);
}

}  // namespace
}  // namespace caravan::masked_task_test
