#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/unicode/utf8.h"
#include "tests/data/support.h"

namespace caravan::tokenizer_families_test {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const json& cases() {
  static const json all = json::parse(read_file(fixture("families/cases.json")));
  return all;
}

const std::vector<std::string>& texts() {
  static const auto all = cases()["texts"].get<std::vector<std::string>>();
  return all;
}

/// Small tokenizers with the pipelines of model families, compared with the ids and texts of Python's `tokenizers`.
class Family : public ::testing::TestWithParam<std::string> {
 protected:
  const Tokenizer tokenizer = Tokenizer::load(fixture("families/" + GetParam() + ".json"));
  const json& expected = cases()["tokenizers"][GetParam()];
};

TEST_P(Family, IdsAreEqual) {
  EXPECT_EQ(tokenizer.vocab_size(), expected["vocab_size"].get<int64_t>());
  for (size_t i = 0; i < texts().size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts()[i]), expected["ids"][i].get<Ids>()) << json(texts()[i]);
  }
}

TEST_P(Family, TextsOneAfterTheOther) {
  std::vector<std::string_view> all(texts().begin(), texts().end());
  Ids apart, joined;
  for (const json& ids : expected["ids"]) {
    if (!apart.empty()) apart.push_back(3);
    for (const json& id : ids) apart.push_back(id.get<int32_t>());
  }
  tokenizer.encode(all, 3, [&](std::span<const int32_t> ids) { joined.insert(joined.end(), ids.begin(), ids.end()); });
  EXPECT_EQ(joined, apart);
}

// families.py: texts[5:12] alone; texts[5:] with texts[10:17].
constexpr size_t kFirst = 5;
constexpr size_t kSecond = 10;

TEST_P(Family, SpecialTokensAreEqual) {
  for (size_t i = 0; i < expected["single"].size(); ++i) {
    const std::string& text = texts()[kFirst + i];
    EXPECT_EQ(tokenizer.encode(text, true), expected["single"][i].get<Ids>()) << json(text);
    EXPECT_EQ(tokenizer.encode_single(text).ids, expected["single"][i].get<Ids>()) << json(text);
    EXPECT_EQ(tokenizer.encode_single(text, false).ids, tokenizer.encode(text)) << json(text);
  }
}

TEST_P(Family, PairsAreEqual) {
  ASSERT_GE(expected["pairs"].size(), 7U);
  for (size_t i = 0; i < expected["pairs"].size(); ++i) {
    const Encoding pair = tokenizer.encode_pair(texts()[kFirst + i], texts()[kSecond + i]);
    EXPECT_EQ(pair.ids, expected["pairs"][i]["ids"].get<Ids>()) << i;
    EXPECT_EQ(pair.type_ids, expected["pairs"][i]["type_ids"].get<Ids>()) << i;
  }
}

TEST_P(Family, TextIsEqual) {
  for (const bool skips_special : {false, true}) {
    const json& decoded = expected[skips_special ? "decoded_without_special" : "decoded"];
    for (size_t i = 0; i < decoded.size(); ++i) {
      const auto ids = expected["streams"][i].get<Ids>();
      TextStream stream(tokenizer, skips_special);
      std::string text;
      for (const int32_t id : ids) {
        const std::string piece = stream.put(id);
        EXPECT_EQ(utf8_error(piece), kNoUtf8Error);
        text += piece;
      }
      text += stream.finish();
      EXPECT_EQ(text, decoded[i].get<std::string>()) << "stream " << i;
      const std::string whole = tokenizer.decode(ids, skips_special);
      if (utf8_error(whole) == kNoUtf8Error) {
        EXPECT_EQ(whole, text) << "stream " << i;
      }
    }
  }
}

TEST_P(Family, ThreadsShareIt) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(2, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts().size(); ++i) {
        wrong[t] += tokenizer.encode(texts()[i]) == expected["ids"][i].get<Ids>() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector(2, 0));
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, value] : cases()["tokenizers"].items()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, Family, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

TEST(TokenizerFamilies, TextAppearsAsSoonAsItIsSure) {
  const Tokenizer llama = Tokenizer::load(fixture("families/llama2.json"));
  TextStream stream(llama);
  EXPECT_EQ(stream.put(*llama.id_of("\u2581the")), "the");  // Strip takes the first space away
  EXPECT_EQ(stream.put(*llama.id_of("\u2581the")), " the");
  for (const char* byte : {"<0xE2>", "<0x82>", "<0xAC>"}) EXPECT_EQ(stream.put(*llama.id_of(byte)), "");
  EXPECT_EQ(stream.put(*llama.id_of("s")), "\u20ACs");
  EXPECT_EQ(stream.put(*llama.id_of("<0xE2>")), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(TokenizerFamilies, TokensHaveTheBytesOfTheMiddleOfAText) {
  const auto bytes = [](const char* family, const char* token) {
    const Tokenizer tokenizer = Tokenizer::load(fixture(std::string("families/") + family + ".json"));
    return std::string(tokenizer.token_bytes(*tokenizer.id_of(token)));
  };
  EXPECT_EQ(bytes("llama2", "\u2581the"), " the");
  EXPECT_EQ(bytes("llama2", "<0x0A>"), "\n");
  EXPECT_EQ(bytes("t5", "\u2581the"), " the");
  EXPECT_EQ(bytes("bert_uncased", "the"), " the");
  EXPECT_EQ(bytes("bert_uncased", "##s"), "s");
  EXPECT_EQ(bytes("bert_uncased", "[MASK]"), "[MASK]");
  EXPECT_EQ(bytes("roberta", "\u0120the"), " the");
}

TEST(TokenizerFamilies, FindsSpecialTokensByTheirUsualNames) {
  const Tokenizer bert = Tokenizer::load(fixture("families/bert_uncased.json"));
  EXPECT_EQ(bert.pad_token(), 0);
  EXPECT_EQ(bert.unk_token(), 1);
  EXPECT_EQ(bert.cls_token(), 2);
  EXPECT_EQ(bert.sep_token(), 3);
  EXPECT_EQ(bert.mask_token(), 4);
  EXPECT_EQ(bert.end_of_text(), std::nullopt);
  const Tokenizer roberta = Tokenizer::load(fixture("families/roberta.json"));
  EXPECT_EQ(roberta.mask_token(), roberta.id_of("<mask>"));
  EXPECT_EQ(roberta.cls_token(), std::nullopt);
}

TEST(TokenizerFamilies, ReadsTheNamesOfSpecialTokens) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", read_file(fixture("families/roberta.json")));
  write_file(folder / "tokenizer_config.json",
             R"({"eos_token": "</s>", "cls_token": {"content": "<s>", "lstrip": false}, "pad_token": null,
                 "mask_token": "no such token", "model_max_length": 512})");
  write_file(folder / "special_tokens_map.json",
             R"({"sep_token": {"content": "</s>"}, "cls_token": "</s>", "pad_token": "<unk>"})");
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.id_of("</s>"));
  EXPECT_EQ(tokenizer.cls_token(), tokenizer.id_of("<s>"));  // tokenizer_config.json goes first
  EXPECT_EQ(tokenizer.sep_token(), tokenizer.id_of("</s>"));
  EXPECT_EQ(tokenizer.pad_token(), tokenizer.id_of("<unk>"));
  EXPECT_EQ(tokenizer.mask_token(), tokenizer.id_of("<mask>"));
  write_file(folder / "special_tokens_map.json", "[]");
  EXPECT_NE(message_of<DataError>([&] { Tokenizer::load(folder / "tokenizer.json"); }).find("special_tokens_map.json"),
            std::string::npos);
}

TEST(TokenizerFamilies, SaysHowToConvertAModelOfSentencePiece) {
  const TemporaryFolder folder;
  write_file(folder / "spiece.model", "\x0A\x0E");
  const std::string command = "T.from_pretrained('" + folder.path().string() + "').save_pretrained('";
  for (const auto& path : {folder / "spiece.model", folder / "tokenizer.json", folder.path()}) {
    const std::string message = message_of<DataError>([&] { Tokenizer::load(path); });
    EXPECT_NE(message.find("spiece.model: is a model of SentencePiece"), std::string::npos) << message;
    EXPECT_NE(message.find(command), std::string::npos) << message;
  }
  write_file(folder / "tokenizer.json", read_file(fixture("families/t5.json")));
  EXPECT_GT(Tokenizer::load(folder / "tokenizer.json").vocab_size(), 0);
}

}  // namespace
}  // namespace caravan::tokenizer_families_test
