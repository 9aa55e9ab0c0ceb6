#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/tokenizer.h"
#include "tests/data/support.h"

namespace caravan::tokenizer_json_test {
namespace {

using nlohmann::json;

std::string refusal(const std::string& text) {
  return message_of<DataError>([&] { Tokenizer::from_json(text, "some/tokenizer.json"); });
}

TEST(TokenizerJson, RefusesOtherFiles) {
  for (const char* text : {"", "{", "[]", "{}", "null", "3", "\"text\"", "{\"model\": 3}", "{\"model\": {}}",
                           "Call me Ishmael.", "{\"vocab_size\": 50257}", "\xFF\xFE{}"}) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find("[tokenizer] some/tokenizer.json: "), std::string::npos) << text << ": " << message;
    EXPECT_NE(message.find("do: "), std::string::npos) << text << ": " << message;
  }
}

TEST(TokenizerJson, RefusesAFileThatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_NE(message_of<DataError>([&] { Tokenizer::load(folder / "none.json"); }).find("none.json"), std::string::npos);
  EXPECT_THROW(Tokenizer::load(folder.path()), DataError);
}

/// Ids of `tokenizers`: without a token for unknown characters these are left out before anything is merged.
TEST(TokenizerJson, MergesAcrossACharacterThatIsLeftOut) {
  json file = json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer":
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "pre_tokenizer": null, "post_processor": null,
      "decoder": null, "model": {"type": "BPE", "vocab": {"▁": 0, "▁▁": 1, "a": 2, "b": 3, "▁a": 4, "<unk>": 5},
      "merges": [["▁", "▁"], ["▁", "a"]]}})");
  const auto encoded = [&](const char* text) { return Tokenizer::from_json(file.dump(), "t.json").encode(text); };
  EXPECT_EQ(encoded("a x b"), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(encoded("x x a"), (std::vector<int32_t>{1, 2}));
  file["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(encoded("a x b"), (std::vector<int32_t>{2, 0, 5, 0, 3}));
}

struct Change {
  const char* name;
  const char* file;
  std::function<void(json&)> apply;
  const char* message;  ///< a part of it
};

/// Whatever would give other ids than in Python is refused with its path in the file.
class ChangedFile : public ::testing::TestWithParam<Change> {};

TEST_P(ChangedFile, IsRefused) {
  json file = json::parse(read_file(fixture(GetParam().file)));
  GetParam().apply(file);
  EXPECT_NE(refusal(file.dump()).find(GetParam().message), std::string::npos) << refusal(file.dump());
}

INSTANTIATE_TEST_SUITE_P(
    Changes, ChangedFile,
    ::testing::Values(
        Change{"OtherModel", "gpt2.json", [](json& f) { f["model"]["type"] = "Unigrams"; },
               "supported: BPE, WordPiece, Unigram, WordLevel"},
        Change{"UnknownKey", "gpt2.json", [](json& f) { f["normaliser"] = nullptr; }, "did you mean normalizer?"},
        Change{"Dropout", "gpt2.json", [](json& f) { f["model"]["dropout"] = 0.1; }, "makes the ids random"},
        Change{"Padding", "gpt2.json", [](json& f) { f["padding"] = 3; }, "padding is not an object"},
        Change{"Normalizer", "qwen.json", [](json& f) { f["normalizer"]["type"] = "Uppercase"; }, "normalizer.type"},
        Change{"NormalizerKey", "qwen.json", [](json& f) { f["normalizer"]["form"] = 1; }, "unknown key \"form\""},
        Change{"PreTokenizer", "smollm.json",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["type"] = "UnicodeScripts"; },
               "pre_tokenizer.pretokenizers[0].type is \"UnicodeScripts\""},
        Change{"Decoder", "gpt2.json", [](json& f) { f["decoder"]["type"] = "CTC"; }, "decoder.type is \"CTC\""},
        Change{"Pattern", "llama3.json",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
               "pre_tokenizer.pretokenizers[0].pattern.Regex"},
        Change{"BadPattern", "llama3.json",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "( without its )"},
        Change{"Charsmap", "families/t5_first.json", [](json& f) { f["normalizer"]["precompiled_charsmap"] = "AAAA"; },
               "in base64"},
        Change{"CharsmapText", "families/t5_first.json", [](json& f) { f["normalizer"]["precompiled_charsmap"] = "?"; },
               "in base64"},
        Change{"EmptyPattern", "families/gemma.json", [](json& f) { f["normalizer"]["pattern"]["String"] = ""; },
               "normalizer.pattern.String is empty"},
        Change{"Replacement", "families/mistral.json", [](json& f) { f["pre_tokenizer"]["replacement"] = "ab"; },
               "is not one character"},
        Change{"Scheme", "families/mistral.json", [](json& f) { f["pre_tokenizer"]["add_prefix_space"] = false; },
               "contradicts prepend_scheme"},
        Change{"UnknownToken", "families/bert_cased.json", [](json& f) { f["model"]["unk_token"] = "<none>"; },
               "model.unk_token is not in the vocabulary"},
        Change{"UnknownTokenOfBpe", "families/openai_gpt.json", [](json& f) { f["model"]["unk_token"] = "<none>"; },
               "model.unk_token is not in the vocabulary"},
        Change{"UnknownId", "families/t5.json", [](json& f) { f["model"]["unk_id"] = nullptr; },
               "model.unk_id is null"},
        Change{"Score", "families/t5.json",
               [](json& f) {
                 f["model"]["vocab"][7] = {"x", "y"};
               },
               "model.vocab[7]"},
        Change{
            "Processors", "families/t5.json",
            [](json& f) {
              f["post_processor"] = {{"type", "Sequence"}, {"processors", {f["post_processor"], f["post_processor"]}}};
            },
            "post_processor.processors[1] is a second one"},
        Change{"PairTemplate", "families/t5.json", [](json& f) { f["post_processor"]["pair"] = json::array(); },
               "post_processor.pair lacks the text itself"},
        Change{"ClsId", "families/bert_cased.json", [](json& f) { f["post_processor"]["cls"][1] = 5000; },
               "adds the id 5000"},
        Change{"HugeId", "gpt2.json", [](json& f) { f["model"]["vocab"]["!"] = 2'000'000'000; }, "ids of "},
        Change{"NegativeId", "gpt2.json", [](json& f) { f["model"]["vocab"]["!"] = -1; }, "ids of "},
        Change{"IdTwice", "gpt2.json", [](json& f) { f["model"]["vocab"]["!"] = 1; }, "the same id 1"},
        Change{"IdText", "gpt2.json", [](json& f) { f["model"]["vocab"]["!"] = "1"; }, "model.vocab"},
        Change{"MergeOfNothing", "gpt2.json",
               [](json& f) {
                 f["model"]["merges"][3] = {"zzzz", "q"};
               },
               "model.merges[3]"},
        Change{"MergeOfThree", "gpt2.json", [](json& f) { f["model"]["merges"][3] = "a b c"; }, "is not a merge"},
        Change{"MergeNumber", "gpt2.json", [](json& f) { f["model"]["merges"][0] = 7; }, "is not a merge"},
        Change{"AddedId", "gpt2.json", [](json& f) { f["added_tokens"][0]["id"] = 3; }, "added_tokens[0].id"},
        Change{"AddedHugeId", "gpt2.json", [](json& f) { f["added_tokens"][0]["id"] = 1LL << 40; }, "whole number"},
        Change{"AddedEmpty", "gpt2.json", [](json& f) { f["added_tokens"][0]["content"] = ""; }, "is empty"},
        Change{"AddedTwice", "gpt2.json", [](json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, "twice"},
        Change{"TemplateToken", "llama3.json",
               [](json& f) { f["post_processor"]["processors"][1]["special_tokens"] = json::object(); },
               "special_tokens lacks"},
        Change{
            "TemplateId", "llama3.json",
            [](json&
                   f) { f["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {99999}; },
            "adds the id 99999"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace caravan::tokenizer_json_test
