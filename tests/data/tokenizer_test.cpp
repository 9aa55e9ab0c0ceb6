#include "caravan/data/tokenizer/tokenizer.h"

#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck.h>

#include "caravan/data/unicode/utf8.h"
#include "tests/data/support.h"

namespace caravan::tokenizer_test {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const json& cases() {
  static const json all = json::parse(read_file(fixture("cases.json")));
  return all;
}

const std::vector<std::string>& texts() {
  static const auto all = cases()["texts"].get<std::vector<std::string>>();
  return all;
}

/// Each tokenizer.json of the fixtures, compared with the ids and texts of Python's `tokenizers`.
class AgainstPython : public ::testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer = Tokenizer::load(fixture(std::string(GetParam()) + ".json"));
  const json& expected = cases()["tokenizers"][GetParam()];
};

TEST_P(AgainstPython, TextsOneAfterTheOther) {
  std::vector<std::string_view> all;
  Ids apart, joined;
  for (const std::string& text : texts()) {
    if (!all.empty()) apart.push_back(7);
    const auto ids = expected["ids"][all.size()].get<Ids>();
    apart.insert(apart.end(), ids.begin(), ids.end());
    all.push_back(text);
  }
  tokenizer.encode(all, 7, [&](std::span<const int32_t> ids) { joined.insert(joined.end(), ids.begin(), ids.end()); });
  EXPECT_EQ(joined, apart);
}

TEST_P(AgainstPython, IdsAreEqual) {
  for (size_t i = 0; i < texts().size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts()[i]), expected["ids"][i].get<Ids>()) << json(texts()[i]);
  }
}

TEST_P(AgainstPython, VocabularySizeIsEqual) {
  EXPECT_EQ(tokenizer.vocab_size(), expected["vocab_size"].get<int64_t>());
}

TEST_P(AgainstPython, PostProcessorAddsTheSameSpecialTokens) {
  std::string all;
  for (const std::string& text : texts()) all += (&text == texts().data() ? "" : " ") + text;
  EXPECT_EQ(tokenizer.encode(all, true), expected["ids_of_all_with_special_tokens"].get<Ids>());
}

TEST_P(AgainstPython, IdsInPiecesAreTheSameIds) {
  std::string all;
  while (all.size() < 500'000) {  // enough for several pieces
    for (const std::string& text : texts()) all += text;
  }
  Ids pieces;
  int num_pieces = 0;
  tokenizer.encode(all, [&](std::span<const int32_t> ids) {
    pieces.insert(pieces.end(), ids.begin(), ids.end());
    ++num_pieces;
  });
  EXPECT_EQ(pieces, tokenizer.encode(all));
  EXPECT_GT(num_pieces, 1);
}

TEST_P(AgainstPython, StreamedTextIsEqual) {
  for (const bool skips_special : {false, true}) {
    const json& decoded = expected[skips_special ? "decoded_without_special" : "decoded"];
    for (size_t i = 0; i < decoded.size(); ++i) {
      TextStream stream(tokenizer, skips_special);
      std::string text;
      for (const int32_t id : expected["streams"][i].get<Ids>()) {
        const std::string piece = stream.put(id);
        EXPECT_EQ(utf8_error(piece), kNoUtf8Error);
        text += piece;
      }
      text += stream.finish();
      EXPECT_EQ(text, decoded[i].get<std::string>()) << "stream " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, AgainstPython,
                         ::testing::Values("gpt2", "llama3", "qwen", "smollm", "flags", "behaviors"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, BytesGiveBytes) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.end_of_text(), std::nullopt);
  EXPECT_EQ(tokenizer.encode("A\n\xC3\xA9"), (Ids{65, 10, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 13U);
}

TEST(Tokenizer, DecodeInvertsEncodeWithoutNormalizer) {
  for (const char* name : {"gpt2", "llama3", "smollm"}) {
    const Tokenizer tokenizer = Tokenizer::load(fixture(std::string(name) + ".json"));
    for (const std::string& text : texts()) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << json(text);
    EXPECT_TRUE(rc::check("any text", [&] {
      std::string text;
      for (const auto point : *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(0, 0x110000))) {
        if (point < 0xD800 || point > 0xDFFF) append_utf8(text, point);
      }
      RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
    }));
  }
}

TEST(Tokenizer, FindsTheEndOfText) {
  const Tokenizer gpt2 = Tokenizer::load(fixture("gpt2.json"));
  ASSERT_EQ(gpt2.end_of_text(), gpt2.id_of("<|endoftext|>"));
  EXPECT_TRUE(gpt2.is_special(*gpt2.end_of_text()));
  EXPECT_EQ(gpt2.decode(std::vector{*gpt2.end_of_text()}, true), "");
  const Tokenizer llama = Tokenizer::load(fixture("llama3.json"));
  EXPECT_EQ(llama.end_of_text(), llama.id_of("<|end_of_text|>"));
  const Tokenizer other = llama.with_end_of_text(*llama.id_of("<|eot_id|>"));
  EXPECT_EQ(other.end_of_text(), llama.id_of("<|eot_id|>"));
  EXPECT_NE(llama.end_of_text(), other.end_of_text());
}

TEST(Tokenizer, IsSavedByteForByte) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(fixture("qwen.json"));
  tokenizer.save(folder / "tokenizer.json");
  EXPECT_EQ(read_file(folder / "tokenizer.json"), read_file(fixture("qwen.json")));
  EXPECT_EQ(Tokenizer::load(folder / "tokenizer.json").hash(), tokenizer.hash());
}

TEST(Tokenizer, IsUsedByManyThreads) {
  const Tokenizer tokenizer = Tokenizer::load(fixture("llama3.json"));
  std::vector<std::thread> threads;
  std::vector<int> wrong(3, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts().size(); ++i) {
        const auto& ids = cases()["tokenizers"]["llama3"]["ids"][i];
        wrong[t] += tokenizer.encode(texts()[i]) == ids.get<Ids>() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector(3, 0));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  const std::string message = message_of<DataError>([&] { tokenizer.encode("good \xFF bad"); });
  EXPECT_NE(message.find("0xFF at offset 5"), std::string::npos) << message;
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  for (const int32_t id : {-1, 256, 1 << 30}) {
    EXPECT_NE(message_of<DataError>([&] { tokenizer.decode(std::vector{id}); }).find("vocabulary of 256"),
              std::string::npos);
    EXPECT_THROW(tokenizer.with_end_of_text(id), DataError);
  }
}

}  // namespace
}  // namespace caravan::tokenizer_test
