#include "caravan/data/tokenizer/bpe_trainer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/data/files/corpus.h"
#include "tests/data/support.h"

namespace caravan::bpe_trainer_test {
namespace {

using nlohmann::json;

/// book_merges.json has the merges that Python's `tokenizers` learned from the same bytes, with the same definition of
/// words and the same order on ties.
TEST(BpeTrainer, LearnsTheMergesOfPythonsTokenizers) {
  const std::vector<std::filesystem::path> files{book_path()};
  const TemporaryFolder cache;
  const Corpus corpus(files, cache.path());
  const TextSplit split = corpus.split();
  const Tokenizer tokenizer = train_bpe(split.train, 1024);
  EXPECT_EQ(tokenizer.vocab_size(), 1024);
  const json expected = json::parse(read_file(fixture("book_merges.json")));
  const json written = json::parse(tokenizer.to_json());
  EXPECT_EQ(written["model"]["merges"], expected["merges"]);
  EXPECT_EQ(tokenizer.encode(split.train[0]).size(), expected["num_ids"].get<size_t>());
}

TEST(BpeTrainer, GivesTheSameFileEveryTime) {
  const std::vector<std::string_view> documents{"the cat and the hat", "the bat, the mat; \xC3\xA9t\xC3\xA9 the rat"};
  const Tokenizer first = train_bpe(documents, 280);
  EXPECT_EQ(first.to_json(), train_bpe(documents, 280).to_json());
  EXPECT_EQ(Tokenizer::from_json(first.to_json()).encode(documents[1]), first.encode(documents[1]));
}

TEST(BpeTrainer, OrderOfDocumentsDoesNotMatter) {
  const std::vector<std::string_view> forth{"aab aab", "bba bba bba"};
  const std::vector<std::string_view> back{"bba bba bba", "aab aab"};
  EXPECT_EQ(train_bpe(forth, 270).to_json(), train_bpe(back, 270).to_json());
}

/// trained.json was written by this trainer and loaded by Python's `tokenizers`, which gave trained_ids.json.
TEST(BpeTrainer, WritesAFileThatPythonReadsTheSameWay) {
  const json cases = json::parse(read_file(fixture("trained_ids.json")));
  std::vector<std::string> texts = cases["texts"];
  std::vector<std::string_view> documents(texts.begin(), texts.end());
  const Tokenizer tokenizer = train_bpe(documents, 400);
  EXPECT_EQ(tokenizer.to_json(), read_file(fixture("trained.json")));
  EXPECT_EQ(tokenizer.vocab_size(), cases["vocab_size"].get<int64_t>());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i]), cases["ids"][i].get<std::vector<int32_t>>()) << json(texts[i]);
  }
}

TEST(BpeTrainer, EndsWithTheTextsPairs) {
  const std::vector<std::string_view> documents{"ab ab ab"};
  const Tokenizer tokenizer = train_bpe(documents, 1000);
  EXPECT_EQ(tokenizer.vocab_size(), 259);  // 256 bytes, <|endoftext|>, "ab", " ab"
  EXPECT_EQ(tokenizer.encode(" ab"), (std::vector<int32_t>{258}));
}

TEST(BpeTrainer, WorksWithoutSpecialToken) {
  const std::vector<std::string_view> documents{"ab ab ab"};
  const Tokenizer tokenizer = train_bpe(documents, 257, {.end_of_text = "", .min_frequency = 2});
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), std::nullopt);
}

TEST(BpeTrainer, PlainTextNeverBecomesTheSpecialToken) {
  const std::vector<std::string_view> documents{"hello hello hello hello"};
  const Tokenizer tokenizer = train_bpe(documents, 300, {.end_of_text = "hello", .min_frequency = 2});
  const json written = json::parse(tokenizer.to_json());
  for (const json& merge : written["model"]["merges"]) {
    EXPECT_NE(merge[0].get<std::string>() + merge[1].get<std::string>(), "hello");
  }
}

TEST(BpeTrainer, RefusesAVocabularyWithoutRoomForBytes) {
  const std::vector<std::string_view> documents{"text"};
  EXPECT_NE(message_of<UsageError>([&] { train_bpe(documents, 256); }).find("at least 257"), std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { train_bpe(documents, -1); }).find("at least 257"), std::string::npos);
  const std::vector<std::string_view> bad{"\xC0"};
  EXPECT_THROW(train_bpe(bad, 300), DataError);
}

/// The special tokens of a task: of ids of their own, around texts, and never made of plain text.
TEST(BpeTrainer, TrainsWithSpecialTokens) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "[MASK] the whale [CLS] and the sea <pad> ";
  const std::vector<std::string_view> texts{text};
  const BpeTrainerOptions options{.more_special = {"[PAD]", "[CLS]", "[SEP]", "[MASK]"}};
  const Tokenizer tokenizer = train_bpe(texts, 300, options);
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  EXPECT_EQ(tokenizer.pad_token(), 257);
  EXPECT_EQ(tokenizer.cls_token(), 258);
  EXPECT_EQ(tokenizer.sep_token(), 259);
  EXPECT_EQ(tokenizer.mask_token(), 260);
  const Encoding pair = tokenizer.encode_pair("sea", "sea");
  const std::vector<int32_t> sea = tokenizer.encode("sea");
  std::vector<int32_t> wanted{258}, types(sea.size() + 2, 0);
  for (int part = 0; part < 2; ++part) {
    wanted.insert(wanted.end(), sea.begin(), sea.end());
    wanted.push_back(259);
  }
  types.resize(wanted.size(), 1);
  EXPECT_EQ(pair.ids, wanted);
  EXPECT_EQ(pair.type_ids, types);
  EXPECT_EQ(tokenizer.decode(pair.ids, /*skip_special_tokens=*/true), "seasea");
  // One that none asked for is plain text, and so is "[MASK" without its end.
  EXPECT_GT(tokenizer.encode("<pad>").size(), 0);
  for (const int32_t id : tokenizer.encode("[MASK <pad>")) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_EQ(train_bpe(texts, 300, {}).mask_token(), std::nullopt);
  EXPECT_THROW(train_bpe(texts, 260, options), UsageError);
}

/// Sources and targets end with the end token, in `tokenizers` too.
TEST(BpeTrainer, EndsTextsWhereTheTaskDoes) {
  const std::vector<std::string_view> texts{"the whale and the sea and the whale"};
  const Tokenizer tokenizer = train_bpe(texts, 270, {.more_special = {"<pad>"}, .ends_texts = true});
  std::vector<int32_t> wanted = tokenizer.encode("sea");
  wanted.push_back(256);
  EXPECT_EQ(tokenizer.encode("sea", /*add_special_tokens=*/true), wanted);
  EXPECT_EQ(tokenizer.encode("sea").size() + 1, wanted.size());
}

}  // namespace
}  // namespace caravan::bpe_trainer_test
