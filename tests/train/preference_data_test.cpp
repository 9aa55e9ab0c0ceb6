/// Rows of data.task = "preference", of texts and of chats.

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/base/error.h"
#include "caravan/data/tasks/preference_task.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/train/dataset/task_dataset.h"
#include "tests/data/task_support.h"

namespace caravan::preference_data_test {
namespace {

using namespace testing;  // NOLINT: helpers of tests
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNone = kIgnoredLabel;

/// Words are their own role's end: "w1: .. w9".
constexpr const char* kTemplate =
    "{% for m in messages %}{{ 'w1 ' if m.role == 'user' else 'w2 ' }}{{ m.content + ' w9 ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w2 ' }}{% endif %}";

class PreferenceData : public ::testing::Test {
 protected:
  PreferenceData() {
    word_tokenizer(40).save(folder / "tokenizer.json");
    write_file(folder / "template.jinja", kTemplate);
  }

  struct Opened {
    Dataset dataset;
    std::unique_ptr<const TaskRows> rows;
    std::unique_ptr<const ValidationRows> validation;
  };
  /// `lines` are the records, of which the last is for validation.
  std::unique_ptr<Opened> open(const std::string& lines, std::vector<std::string> set = {}, int64_t context = 8) const {
    write_file(folder / "records.jsonl", lines);
    set.insert(set.begin(), {"data.tokenizer=\"" + (folder / "tokenizer.json").string() + "\"",
                             "data.text=records.jsonl", "data.task=preference"});
    const Recipe recipe = parse_recipe("", "test", set);
    const DataFolders folders{.home = folder.path(), .cache = folder / "cache"};
    auto opened = std::make_unique<Opened>(Opened{open_dataset(recipe.data, folders), nullptr, nullptr});
    opened->rows = train_rows(opened->dataset, recipe.data, {.context = context}, recipe.train.seed);
    opened->validation = validation_rows(opened->dataset, recipe.data, {.context = context});
    EXPECT_EQ(opened->rows->shape().num_sequences, 2);
    return opened;
  }
  std::unique_ptr<Opened> open_chats(const std::string& lines, int64_t context = 8) const {
    return open(lines, {"data.format=chat", "data.chat_template=\"" + (folder / "template.jinja").string() + "\""},
                context);
  }
  std::string error_of(const std::string& lines, const std::vector<std::string>& set = {}) const {
    return message_of<DataError>([&] { open(lines, set); });
  }

  const TemporaryFolder folder;
};

const char* const kText = R"({"prompt":"w1 w2","chosen":" w3","rejected":" w4 w5"})";

TEST_F(PreferenceData, ARowHasBothAnswersAfterTheirPrompt) {
  const std::string lines = std::string(kText) + "\n" + kText + "\n";
  const auto opened = open(lines);
  const FilledRows row = filled(*opened->rows, 0, 1);
  ASSERT_EQ(row.ids.size(), 16U);
  // Inputs and next tokens; the end </s> is learned.
  EXPECT_EQ(part_of(row.ids, 0, 8), (Ids{11, 12, 13, 0, 0, 0, 0, 0}));
  EXPECT_EQ(part_of(row.labels, 0, 8), (Ids{kNone, 13, 1, kNone, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(part_of(row.ids, 8, 8), (Ids{11, 12, 14, 15, 0, 0, 0, 0}));
  EXPECT_EQ(part_of(row.labels, 8, 8), (Ids{kNone, 14, 15, 1, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(opened->rows->num_targets(0, 5), 5) << "the loss is a mean over pairs";
  EXPECT_EQ(opened->validation->num_targets(), 1);
  EXPECT_EQ(opened->validation->text_bytes(), 0);
  const FilledRows padding = filled(*opened->validation, 1, 1);
  EXPECT_EQ(padding.labels, Ids(16, kNone));
}

TEST_F(PreferenceData, NamesOfFieldsAreKeys) {
  const std::string line = R"({"q":"w1","good":" w3","bad":" w4"})";
  const auto opened =
      open(line + "\n" + line + "\n", {"data.prompt_field=q", "data.chosen_field=good", "data.rejected_field=bad"});
  EXPECT_EQ(part_of(filled(*opened->rows, 0, 1).ids, 0, 3), (Ids{11, 13, 0}));
}

/// longest_first over the prompt and the longer answer: the prompt loses its beginning.
TEST_F(PreferenceData, TruncatesBothSequencesAlike) {
  const std::string line = R"({"prompt":"w1 w2 w3 w4 w5","chosen":" w6 w7 w8 w9 w10","rejected":" w11"})";
  const auto opened = open(line + "\n" + line + "\n", {}, 6);
  const FilledRows row = filled(*opened->rows, 0, 1);
  // Seven tokens with the end: three of the prompt and three of the answer.
  EXPECT_EQ(part_of(row.ids, 0, 6), (Ids{13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(part_of(row.labels, 0, 6), (Ids{kNone, kNone, 16, 17, 18, 1}));
  EXPECT_EQ(part_of(row.ids, 6, 6), (Ids{13, 14, 15, 21, 0, 0}));
  EXPECT_EQ(part_of(row.labels, 6, 6), (Ids{kNone, kNone, 21, 1, kNone, kNone}));
  EXPECT_THAT(message_of<ShapeError>([&] { open(line + "\n" + line + "\n", {}, 1); }), HasSubstr("use at least 2"));
}

/// A tokenizer that joins the end of the prompt with the answer: the answer begins where the ids differ.
TEST_F(PreferenceData, AnAnswerBeginsWhereTheIdsDiffer) {
  const std::string line = R"({"prompt":"w1 w","chosen":"3 w5","rejected":"4"})";
  const auto opened = open(line + "\n" + line + "\n");
  const FilledRows row = filled(*opened->rows, 0, 1);
  EXPECT_EQ(part_of(row.ids, 0, 4), (Ids{11, 13, 15, 0}));
  EXPECT_EQ(part_of(row.labels, 0, 4), (Ids{13, 15, 1, kNone}));
}

const char* const kChat =
    R"({"prompt":[{"role":"user","content":"w3"}],"chosen":[{"role":"assistant","content":"w4"}],)"
    R"("rejected":[{"role":"assistant","content":"w5"}]})";
/// Whole conversations with a common beginning.
const char* const kWhole = R"({"chosen":[{"role":"user","content":"w3"},{"role":"assistant","content":"w4"}],)"
                           R"("rejected":[{"role":"user","content":"w3"},{"role":"assistant","content":"w5"}]})";

TEST_F(PreferenceData, ChatsAreWrittenByTheTemplate) {
  for (const char* line : {kChat, kWhole}) {
    const auto opened = open_chats(std::string(line) + "\n" + line + "\n");
    const FilledRows row = filled(*opened->rows, 0, 1);
    // w1 w3 w9 | w2, then the answer and the end of its turn; no end of text.
    EXPECT_EQ(part_of(row.ids, 0, 8), (Ids{11, 13, 19, 12, 14, 0, 0, 0})) << line;
    EXPECT_EQ(part_of(row.labels, 0, 8), (Ids{kNone, kNone, kNone, 14, 19, kNone, kNone, kNone})) << line;
    EXPECT_EQ(part_of(row.ids, 8, 8), (Ids{11, 13, 19, 12, 15, 0, 0, 0})) << line;
  }
}

/// Equal in the file, or once both are cut.
TEST_F(PreferenceData, PairsOfEqualAnswersAreNotedOrRefused) {
  const auto line = [](const std::string& chosen, const std::string& rejected) {
    return R"({"prompt":"w1 w2","chosen":")" + chosen + R"(","rejected":")" + rejected + "\"}\n";
  };
  const std::string good = line(" w3", " w4"), same = line(" w3", " w3");
  const std::string cut = line(" w3 w4 w5 w6 w7 w8", " w3 w4 w5 w6 w7 w9"), shorter = line(" w3 w4", " w3");
  const auto notes = [&](const std::string& lines, int64_t context) { return open(lines, {}, context)->rows->notes(); };
  const std::string fact = "the same chosen and rejected answer within model.context, and so nothing to learn";
  EXPECT_EQ(notes(good + same + cut + shorter + good, 6),
            std::vector<std::string>{"records.jsonl: 2 of 4 pairs have " + fact});
  EXPECT_EQ(notes(good + same + cut + shorter + good, 8),
            std::vector<std::string>{"records.jsonl: 1 of 4 pairs has " + fact});
  EXPECT_TRUE(notes(good + cut + shorter + good, 8).empty());
  EXPECT_THAT(message_of<DataError>([&] { open(same + cut + good, {}, 6); }),
              AllOf(HasSubstr("records.jsonl: has 2 pairs, all with " + fact), HasSubstr("or raise model.context")));
}

/// Against rows: a pair is idle if both of its sequences are the same.
TEST_F(PreferenceData, IdlePairsAreThoseOfEqualSequences) {
  const PreferenceTask task(word_tokenizer(40), 6, false);
  EXPECT_TRUE(rc::check("as the rows say", [&] {
    const auto words = rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(11, 13)));
    const RecordList::Texts texts{*words, *words, 0, *words};
    std::vector<int32_t> ids;
    for (const auto* part : {&texts.first, &texts.second, &texts.third})
      ids.insert(ids.end(), part->begin(), part->end());
    const auto file_of = [&](const std::string& name, const std::vector<int32_t>& numbers) {
      TokenFileWriter writer(folder / name, 1 << 20);
      writer.append(numbers);
      writer.finish(0, {});
      return TokenFile::open(folder / name);
    };
    const TokenFile tokens = file_of("ids", ids);
    const TokenFile index =
        file_of("index", {static_cast<int32_t>(texts.first.size()), static_cast<int32_t>(texts.second.size()),
                          static_cast<int32_t>(texts.third.size())});
    const RecordList records(tokens, index, ThirdNumber::tokens);
    Ids inputs(12), labels(12);
    task.fill(texts, {.ids = inputs, .labels = labels});
    const bool are_same =
        part_of(inputs, 0, 6) == part_of(inputs, 6, 6) && part_of(labels, 0, 6) == part_of(labels, 6, 6);
    RC_CLASSIFY(are_same);
    RC_ASSERT(task.is_idle(records, 0) == are_same);
  }));
}

TEST_F(PreferenceData, BadRecordsAreNamedByLine) {
  const std::string good = std::string(kText) + "\n";
  EXPECT_THAT(error_of(good + R"({"prompt":"w1","chosen":"w2"})"),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("rejected")));
  EXPECT_THAT(error_of(good + R"({"prompt":"w1","chosen":"","rejected":"w2"})"),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("chosen is an empty text")));
  EXPECT_THAT(error_of(good + kChat), AllOf(HasSubstr("records.jsonl:2"), HasSubstr("set data.format = \"chat\"")));
  EXPECT_THAT(error_of(good + R"({"prompt":"w1","chosen":" ","rejected":" w2"})"), HasSubstr("adds no token"));
  const auto chat_error = [&](const std::string& line) {
    return message_of<DataError>([&] { open_chats(std::string(kChat) + "\n" + line + "\n"); });
  };
  EXPECT_THAT(chat_error(kText), AllOf(HasSubstr("records.jsonl:2"), HasSubstr("set data.format = \"text\"")));
  EXPECT_THAT(chat_error(R"({"chosen":[{"role":"user","content":"w3"}],"rejected":[{"role":"user","content":"w4"}]})"),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("begin with different messages")));
  EXPECT_THAT(chat_error(R"({"chosen":[{"role":"user","content":"w3"}],"rejected":[{"role":"user","content":"w3"}]})"),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("has no answer")));
  // Whole conversations, and their beginning once more: nothing is wrong with the template.
  const std::string whole = std::string(R"({"prompt":[{"role":"user","content":"w3"}],)") + (kWhole + 1);
  EXPECT_THAT(chat_error(whole),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("its field chosen repeats the messages of prompt"),
                    HasSubstr("give the answer alone"), Not(HasSubstr("template"))));
  EXPECT_THAT(chat_error(R"({"prompt":[],"chosen":[],"rejected":[]})"), HasSubstr("is no list of messages"));
  EXPECT_THAT(chat_error(R"({"prompt":[{"role":"user","content":"w3"}],"rejected":[]})"),
              AllOf(HasSubstr("records.jsonl:2"), HasSubstr("chosen")));
  const auto skipped = open(good + "{}\n" + good, {"data.skip_bad_lines=true"});
  EXPECT_EQ(skipped->dataset.num_skipped_lines, 1);
}

TEST_F(PreferenceData, NeedsAnEndOfTexts) {
  word_tokenizer(40, /*has_end=*/false).save(folder / "tokenizer.json");
  EXPECT_THAT(message_of<UsageError>([&] { open(std::string(kText) + "\n" + kText + "\n"); }),
              HasSubstr("\"preference\" ends texts with the tokenizer's end-of-text token"));
}

TEST_F(PreferenceData, RefusesWhatCannotLearnPairs) {
  const auto refusal = [](std::vector<std::string> set) {
    set.insert(set.begin(), "data.task=preference");
    return message_of<UsageError>([&] { parse_recipe("", "test", set); });
  };
  EXPECT_THAT(refusal({"mesh.cp=2"}), AllOf(HasSubstr("mesh.cp"), HasSubstr("use mesh.dp, mesh.tp or mesh.pp")));
  EXPECT_THAT(refusal({"mesh.ep=2", "moe.experts=4"}), HasSubstr("mesh.ep"));
  EXPECT_THAT(refusal({"mesh.tp=4", "tensor_parallel.kind=2d"}), AllOf(HasSubstr("kind"), HasSubstr("\"1d\"")));
  EXPECT_THAT(refusal({"model.kind=bert"}), HasSubstr("whose tokens see all"));
  EXPECT_THAT(refusal({"data.streaming=true"}), HasSubstr("is used with data.task"));
  EXPECT_THAT(refusal({"data.fill=best_fit"}), HasSubstr("is used with data.task"));
  EXPECT_THAT(refusal({"data.pack=documents"}), HasSubstr("is used with data.task"));
  EXPECT_THAT(refusal({"preference.loss=dpa"}), HasSubstr("the nearest is 'dpo'"));
  EXPECT_THAT(refusal({"preference.loss=ipo", "preference.label_smoothing=0.1"}), HasSubstr("\"dpo\" only"));
  EXPECT_THAT(refusal({"preference.label_smoothing=0.6"}), HasSubstr("0.6"));
  EXPECT_THAT(refusal({"preference.beta=0"}), HasSubstr("preference.beta"));
  EXPECT_THAT(refusal({"lora.rank=4", "lora.modules_to_save=[\"head\"]"}), HasSubstr("set preference.reference"));
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "test", {"preference.beta=0.2"}); }),
              HasSubstr("is used with data.task = \"preference\" only"));
}

}  // namespace
}  // namespace caravan::preference_data_test
