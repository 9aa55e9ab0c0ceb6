#include "caravan/train/dataset/task_dataset.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/task_support.h"

namespace caravan::task_dataset_test {
namespace {

using namespace testing;  // NOLINT: helpers of tests
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kNone = kIgnoredLabel;

class TaskDataset : public ::testing::Test {
 protected:
  TaskDataset() {
    word_tokenizer(40).save(folder / "tokenizer.json");
    std::filesystem::create_directory(folder / "bert");
    family("bert_uncased").save(folder / "bert" / "tokenizer.json");
    std::string lines, pairs;
    for (int i = 0; i < 20; ++i) {
      const std::string text = "w" + std::to_string(i);
      const std::string label = i % 3 == 0 ? "\"b\"" : i % 3 == 1 ? "\"a\"" : "\"c\"";
      lines += R"({"text":")" + text + R"(","label":)" + label + R"(,"number":)" + std::to_string(20 - i) +
               R"(,"other":"w50 w51"})" + "\n";
      pairs += R"({"source":")" + text + R"( w60","target":"w70 )" + text + R"(","back":"w80"})" + "\n";
    }
    write_file(folder / "records.jsonl", lines);
    write_file(folder / "pairs.jsonl", pairs);
    std::string words;
    for (int i = 0; i < 900; ++i) words += "w" + std::to_string(i * 7 % 100) + (i % 11 == 10 ? "\n" : " ");
    write_file(folder / "text.txt", words);
  }

  struct Opened {
    Dataset dataset;
    std::unique_ptr<const TaskRows> rows;
    std::unique_ptr<const ValidationRows> validation;
  };
  /// On the heap: rows refer to the dataset.
  std::unique_ptr<Opened> open(std::vector<std::string> set, const RowSettings& settings = {.context = 8}) const {
    set.insert(set.begin(),
               {"data.tokenizer=\"" + (folder / "tokenizer.json").string() + "\"", "data.text=records.jsonl"});
    const Recipe recipe = parse_recipe("", "test", set);
    auto opened = std::make_unique<Opened>(Opened{open_dataset(recipe.data, folders()), nullptr, nullptr});
    opened->rows = train_rows(opened->dataset, recipe.data, settings, recipe.train.seed);
    opened->validation = validation_rows(opened->dataset, recipe.data, settings);
    return opened;
  }
  DataFolders folders() const { return {.home = folder.path(), .cache = folder / "cache"}; }

  const TemporaryFolder folder;
};

TEST_F(TaskDataset, ClassifyHasTheClassesOfTheTrainingRecords) {
  const auto opened = open({"data.task=classify"});
  EXPECT_EQ(opened->dataset.class_names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(opened->rows->epochs(0, 18).value(), 1) << "a tenth of the records is for validation";
  EXPECT_EQ(opened->validation->size(), 2);
  const FilledRows row = filled(*opened->validation, 0, 1);
  EXPECT_EQ(row.ids, (Ids{28, 1, 0, 0, 0, 0, 0, 0})) << "record 18";
  EXPECT_EQ(row.labels, (Ids{kNone, 1, kNone, kNone, kNone, kNone, kNone, kNone}));
  const auto first = open({"data.task=classify"}, {.context = 8, .label_place = LabelPlace::first});
  EXPECT_EQ(filled(*first->validation, 0, 1).labels[0], 1);

  const auto numbers = open({"data.task=classify", "data.label_field=number", "data.validation=records.jsonl"});
  EXPECT_EQ(numbers->dataset.class_names.size(), 20U);
  EXPECT_EQ(numbers->dataset.class_names[1], "2") << "sorted as numbers";
  EXPECT_EQ(numbers->dataset.class_names[19], "20");
}

TEST_F(TaskDataset, ClassifyReadsTheFieldsOfTheRecipe) {
  const auto pairs = open({"data.task=classify", "data.pair_field=other"});
  const FilledRows pair = filled(*pairs->validation, 0, 1);
  EXPECT_EQ(pair.ids, (Ids{28, 1, 60, 61, 1, 0, 0, 0}));
  EXPECT_EQ(pair.token_types, Ids(8, 0)) << "T5 has one type";
  const auto other = open({"data.task=classify", "data.field=other"});
  EXPECT_EQ(filled(*other->validation, 0, 1).ids, (Ids{60, 61, 1, 0, 0, 0, 0, 0}));
  EXPECT_NE(other->dataset.train_hash(), open({"data.task=classify"})->dataset.train_hash());
}

TEST_F(TaskDataset, ALabelThatTrainingLacksIsRefusedWithItsLine) {
  write_file(folder / "held.jsonl", "{\"text\":\"w1\",\"label\":\"a\"}\n{\"text\":\"w1\",\"label\":\"bee\"}\n");
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.validation=held.jsonl"});
              }),
              AllOf(HasSubstr((folder / "held.jsonl").string() + ":2: its label bee is none of the 3"),
                    HasSubstr("the nearest is b")));
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.label_field=lable"});
              }),
              AllOf(HasSubstr("records.jsonl:1: has no field lable"), HasSubstr("label")));
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.label_field=other"});
              }),
              HasSubstr("has records of one class only, w50 w51"));
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.label_field=number"});
              }),
              HasSubstr("records.jsonl:19: its label 2 is none of the 18"));
  write_file(folder / "one.jsonl", "{\"text\":\"w1\",\"label\":\"a\"}\n");
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.text=one.jsonl"});
              }),
              HasSubstr("leaves no record for training"));
  EXPECT_THAT(message_of<DataError>([&] {
                open({"data.task=classify", "data.text=text.txt"});
              }),
              HasSubstr("text.txt: has no JSON lines"));
}

/// What rehearsals know without the data.
TEST_F(TaskDataset, RowsHaveTheShapeThatTheRecipeTells) {
  const std::string text = "data.text=" + (folder / "text.txt").string();
  const std::string bert = "data.tokenizer=\"" + (folder / "bert/tokenizer.json").string() + "\"";
  const std::vector<std::vector<std::string>> recipes{
      {text},
      {text, "data.pack=documents"},
      {text, bert, "data.task=masked", "model.causal=false"},
      {text, bert, "data.task=masked", "model.kind=bert", "model.tie_embeddings=true"},
      {"data.task=classify"},
      {"data.task=classify", "data.pair_field=other"},
      {"data.task=classify", "data.pair_field=other", "model.kind=bert", "model.tie_embeddings=true"},
      {"data.text=pairs.jsonl", "data.task=pairs"},
      {"data.text=pairs.jsonl", "data.task=pairs", "model.kind=t5", "model.encoder_layers=2",
       "model.source_context=12"},
      {text, "data.task=spans", "model.kind=t5", "model.encoder_layers=2", "model.source_context=12",
       "data.mask_rate=0.3"}};
  for (std::vector<std::string> set : recipes) {
    const std::string name = set.back();
    set.insert(set.begin(), {"data.tokenizer=\"" + (folder / "tokenizer.json").string() + "\"",
                             "data.text=records.jsonl", "model.context=8"});
    const Recipe recipe = parse_recipe("", "test", set);
    const Dataset dataset = open_dataset(recipe.data, folders());
    const RowShape shape = train_rows(dataset, recipe.data, row_settings(recipe), 1)->shape();
    const RowShape told = row_shape(recipe);
    EXPECT_EQ(told.length, shape.length) << name;
    EXPECT_EQ(told.num_sources, shape.num_sources) << name;
    EXPECT_EQ(told.has_documents, shape.has_documents) << name;
    EXPECT_EQ(told.has_positions, shape.has_positions) << name;
    EXPECT_EQ(told.has_token_types, shape.has_token_types) << name;
  }
}

TEST_F(TaskDataset, PairsOfBothKindsOfModels) {
  const auto decoder = open({"data.task=pairs", "data.text=pairs.jsonl"});
  EXPECT_EQ(filled(*decoder->validation, 0, 1).ids, (Ids{28, 70, 1, 80, 28, 0, 0, 0}));
  EXPECT_EQ(filled(*decoder->validation, 0, 1).labels, (Ids{kNone, kNone, 80, 28, 1, kNone, kNone, kNone}));
  EXPECT_FALSE(decoder->rows->shape().has_documents);
  const auto both =
      open({"data.task=pairs", "data.text=pairs.jsonl", "data.target_field=back"}, {.context = 4, .source_context = 5});
  EXPECT_EQ(filled(*both->validation, 0, 1).ids, (Ids{28, 70, 1, 0, 0, /**/ 0, 90, 0, 0}));
  EXPECT_EQ(both->rows->shape().num_sources, 5);
  const auto swapped =
      open({"data.task=pairs", "data.text=pairs.jsonl", "data.source_field=target", "data.target_field=source"});
  EXPECT_EQ(filled(*swapped->validation, 0, 1).ids, (Ids{80, 28, 1, 28, 70, 0, 0, 0}));
}

TEST_F(TaskDataset, MixturesOfRecords) {
  const auto mixture = open({"data.text=[\"records.jsonl\"]"});
  EXPECT_EQ(mixture->dataset.class_names.size(), 0U) << "the task is the next token";
  write_file(folder / "more.jsonl", "{\"text\":\"w90\",\"label\":\"d\"}\n{\"text\":\"w91\",\"label\":\"a\"}\n");
  Recipe recipe = parse_recipe("", "test",
                               {"data.tokenizer=\"" + (folder / "tokenizer.json").string() + "\"", "data.task=classify",
                                "data.sources=[{path = \"records.jsonl\", weight = 3}, {path = \"more.jsonl\"}]"});
  const Dataset dataset = open_dataset(recipe.data, folders());
  EXPECT_EQ(dataset.class_names, (std::vector<std::string>{"a", "b", "c", "d"}));
  const auto rows = train_rows(dataset, recipe.data, {.context = 4}, 3);
  EXPECT_EQ(rows->drawn(8), (std::vector<int64_t>{6, 2}));
}

/// A tokenizer trained on records sees their texts, not their JSON.
TEST_F(TaskDataset, ATokenizerIsTrainedOnTheTexts) {
  const auto opened = open({"data.task=classify", "data.tokenizer={train = 300}"});
  EXPECT_FALSE(opened->dataset.tokenizer.id_of("label"));
  EXPECT_EQ(opened->dataset.tokenizer.encode("w1").size(), 2U);
}

TEST_F(TaskDataset, MaskedRowsFollowTheKeys) {
  const std::string bert = "data.tokenizer=\"" + (folder / "bert" / "tokenizer.json").string() + "\"";
  write_file(folder / "book.txt", std::string(read_file(book_path())).substr(0, 20'000));
  const auto targets = [&](const std::vector<std::string>& set) {
    std::vector<std::string> all{"data.task=masked", "model.causal=false", "data.text=book.txt", bert};
    all.insert(all.end(), set.begin(), set.end());
    const auto opened = open(all, {.context = 40});
    EXPECT_EQ(opened->rows->shape().length, 40);
    EXPECT_EQ(filled(*opened->validation, 0, 1).ids.front(), 2);
    return std::pair(opened->rows->num_targets(0, 10), filled(*opened->rows, 0, 10).labels);
  };
  EXPECT_EQ(targets({}).first, 60);
  EXPECT_EQ(targets({"data.mask_rate=0.3"}).first, 120);
  EXPECT_NE(targets({"data.whole_words=true"}).second, targets({}).second);
  EXPECT_THAT(message_of<UsageError>([&] {
                open({"data.task=masked", "model.causal=false", "data.text=text.txt"});
              }),
              HasSubstr("mask token"));
}

/// Text is tokenized during the run, as for the next token: streamed windows have masks too.
TEST_F(TaskDataset, MaskedTextsMayBeStreamed) {
  const std::string bert = "data.tokenizer=\"" + (folder / "bert" / "tokenizer.json").string() + "\"";
  write_file(folder / "book.txt", std::string(read_file(book_path())).substr(0, 20'000));
  const auto opened = open(
      {"data.task=masked", "model.causal=false", "data.text=book.txt", bert, "data.streaming=true"}, {.context = 40});
  EXPECT_FALSE(opened->rows->is_ready(10));
  EXPECT_EQ(opened->rows->prepare(0, 10).size(), 1U);
  EXPECT_TRUE(opened->rows->is_ready(10));
  EXPECT_EQ(opened->rows->num_targets(0, 10), 60);
}

TEST_F(TaskDataset, SpansFollowTheKeys) {
  const RowSettings settings{.context = 20, .source_context = 64};
  const auto lengths = [&](const std::vector<std::string>& set) {
    std::vector<std::string> all{"data.task=spans", "data.text=text.txt"};
    all.insert(all.end(), set.begin(), set.end());
    return open(all, settings)->rows->num_targets(0, 1);
  };
  EXPECT_EQ(lengths({}), 14);
  EXPECT_EQ(lengths({"data.span_length=10"}), 13) << "one span";
  EXPECT_EQ(lengths({"data.mask_rate=0.1"}), 10);
  EXPECT_THAT(message_of<UsageError>([&] {
                open({"data.task=spans", "data.text=text.txt"});
              }),
              HasSubstr("needs an encoder"));
}

TEST_F(TaskDataset, KeysOfOtherTasksAreRefused) {
  const auto refused = [](const std::vector<std::string>& set) {
    return message_of<UsageError>([&] { parse_recipe("", "test", set); });
  };
  EXPECT_THAT(refused({"data.task=mask"}), HasSubstr("the nearest is 'masked'"));
  for (const auto& [task, key] : std::vector<std::pair<std::string, std::string>>{{"next", "mask_rate=0.2"},
                                                                                  {"next", "whole_words=true"},
                                                                                  {"spans", "whole_words=true"},
                                                                                  {"masked", "span_length=4"},
                                                                                  {"pairs", "field=a"},
                                                                                  {"pairs", "pair_field=a"},
                                                                                  {"next", "label_field=a"},
                                                                                  {"classify", "source_field=a"},
                                                                                  {"classify", "target_field=a"},
                                                                                  {"masked", "format=chat"},
                                                                                  {"masked", "pack=documents"},
                                                                                  {"classify", "pack=documents"},
                                                                                  {"masked", "fill=best_fit"},
                                                                                  {"pairs", "fill=stream"},
                                                                                  {"pairs", "streaming=true"}}) {
    const std::string name = "data." + key.substr(0, key.find('='));
    EXPECT_THAT(refused({"data.task=" + task, "data." + key}), AllOf(HasSubstr(name), HasSubstr("with data.task = ")));
  }
  EXPECT_THAT(refused({"data.task=masked", "model.causal=false", "data.mask_rate=0"}), HasSubstr("data.mask_rate"));
  EXPECT_THAT(refused({"data.task=spans", "data.span_length=0.5"}), HasSubstr("data.span_length"));
  EXPECT_THAT(to_toml(parse_recipe("", "test", {"data.task=masked", "model.causal=false"})),
              HasSubstr("mask_rate = 0.15"));
}

}  // namespace
}  // namespace caravan::task_dataset_test
