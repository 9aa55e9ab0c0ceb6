#include "caravan/data/tasks/record_task.h"

#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/files/record.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/task_support.h"

namespace caravan::record_task_test {
namespace {

using namespace testing;  // NOLINT: helpers of tests
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kNone = kIgnoredLabel;

RecordTokens tokenized(const TemporaryFolder& folder, const std::vector<Record>& records, const Tokenizer& tokenizer,
                       const std::vector<std::string>& classes = {}) {
  std::vector<std::string> documents;
  for (const Record& record : records) documents.push_back(record.to_json());
  const std::vector<std::string_view> views(documents.begin(), documents.end());
  return open_or_build_records(folder / "cache", views, tokenizer, classes,
                               [](std::string_view, int64_t line) { return "file:" + std::to_string(line); });
}

/// What `tokenizers` leaves of two texts with truncation "longest_first": tokens before, room, tokens after.
TEST(LongestFirst, IsThatOfTransformers) {
  for (const auto& [first, second, room, want_first, want_second] :
       std::vector<std::array<int64_t, 5>>{{3, 3, 7, 3, 3},
                                           {10, 3, 9, 6, 3},
                                           {3, 10, 9, 3, 6},
                                           {10, 10, 9, 4, 5},
                                           {10, 10, 10, 5, 5},
                                           {9, 10, 9, 4, 5},
                                           {10, 9, 9, 5, 4},
                                           {20, 1, 6, 5, 1},
                                           {1, 20, 6, 1, 5},
                                           {5, 4, 3, 2, 1},
                                           {4, 5, 3, 1, 2},
                                           {2, 2, 2, 1, 1},
                                           {7, 7, 3, 1, 2},
                                           {8, 6, 10, 5, 5}}) {
    EXPECT_EQ(longest_first(first, second, room), std::pair(want_first, want_second))
        << first << ' ' << second << ' ' << room;
  }
  EXPECT_EQ(longest_first(5, 0, 3), (std::pair<int64_t, int64_t>(3, 0)));
  EXPECT_EQ(longest_first(5, 2, -1), (std::pair<int64_t, int64_t>(0, 0)));
}

/// Ids and types of `tokenizers`, with max_length 12 and padding to 14 of our own.
TEST(Classify, RowsArePaddedAndTruncatedAsByTransformers) {
  const TemporaryFolder folder;
  const Tokenizer bert = family("bert_uncased");
  const RecordTokens made = tokenized(
      folder,
      {{.first = "the landlord would look over the room", .second = "little self", .label = "b"},
       {.first = "go", .second = ". then the night bled over the landlord's room, he could have", .label = "a"},
       {.first = "go", .second = "room", .label = "b"}},
      bert, {"a", "b"});
  const RecordTaskValidation rows(RecordList(made.tokens, made.index),
                                  std::make_shared<const ClassifyTask>(bert, 12, true, LabelPlace::first));
  EXPECT_EQ(rows.size(), 3);
  const FilledRows all = filled(rows, 0, 4);
  EXPECT_EQ(part_of(all.ids, 0, 12), (Ids{2, 192, 405, 411, 406, 397, 3, 394, 291, 145, 139, 3}));
  EXPECT_EQ(part_of(all.token_types, 0, 12), (Ids{0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(part_of(all.ids, 12, 12), (Ids{2, 417, 3, 18, 401, 192, 419, 414, 195, 397, 192, 3}));
  EXPECT_EQ(part_of(all.token_types, 12, 12), (Ids{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(part_of(all.ids, 24, 12), (Ids{2, 417, 3, 409, 3, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(part_of(all.token_types, 24, 12), (Ids{0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(part_of(all.documents, 24, 12), (Ids{1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0})) << "padding sees padding";
  EXPECT_EQ(part_of(all.labels, 0, 2), (Ids{1, kNone}));
  EXPECT_EQ(all.labels[12], 0);
  EXPECT_EQ(std::ranges::count(all.labels, kNone), 48 - 3) << "one label a record; none in a row of padding";
  EXPECT_EQ(rows.num_targets(), 3);

  const RecordTokens single = tokenized(
      folder, {{.first = "the landlord would look over the room and the little night", .label = "a"}}, bert, {"a"});
  const RecordTaskValidation one(RecordList(single.tokens, single.index),
                                 std::make_shared<const ClassifyTask>(bert, 12, false, LabelPlace::last));
  const FilledRows row = filled(one, 0, 1);
  EXPECT_EQ(row.ids, (Ids{2, 192, 405, 411, 406, 397, 192, 409, 200, 192, 394, 3}));
  EXPECT_FALSE(one.shape().has_documents) << "of a decoder, whose padding comes last";
  EXPECT_FALSE(one.shape().has_token_types);
}

TEST(Classify, TheLabelStandsWhereTheModelDecides) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = word_tokenizer(1);
  const RecordTokens made = tokenized(
      folder, {{.first = "w1 w2", .label = "x"}, {.first = "w1 w2 w3 w4 w5 w6", .label = "y"}}, tokenizer, {"x", "y"});
  const auto labels = [&](LabelPlace place, int64_t context) {
    const RecordTaskValidation rows(RecordList(made.tokens, made.index),
                                    std::make_shared<const ClassifyTask>(tokenizer, context, false, place));
    return filled(rows, 0, 2).labels;
  };
  EXPECT_EQ(labels(LabelPlace::first, 4), (Ids{0, kNone, kNone, kNone, 1, kNone, kNone, kNone}));
  EXPECT_EQ(labels(LabelPlace::last, 4), (Ids{kNone, kNone, 0, kNone, kNone, kNone, kNone, 1}));
  EXPECT_EQ(labels(LabelPlace::last, 3), (Ids{kNone, kNone, 0, kNone, kNone, 1}));
  EXPECT_THAT(message_of<ShapeError>([&] { ClassifyTask(tokenizer, 1, false, LabelPlace::last); }),
              HasSubstr("use at least 2"));
  EXPECT_THAT(message_of<ShapeError>([&] { ClassifyTask(tokenizer, 3, true, LabelPlace::last); }),
              HasSubstr("use at least 4"));
}

TEST(Pairs, OfAnEncoderDecoderFillTheirParts) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = word_tokenizer(1);
  const RecordTokens made =
      tokenized(folder, {{.first = "w1 w2", .second = "w3"}, {.first = "w1 w2 w3 w4 w5 w6", .second = "w7 w8 w9 w10"}},
                tokenizer);
  const auto task = std::make_shared<const PairTask>(tokenizer, PairTask::Settings{.context = 3, .source_context = 4});
  const RecordTaskValidation rows(RecordList(made.tokens, made.index), task);
  EXPECT_EQ(rows.shape().length, 7);
  EXPECT_EQ(rows.shape().num_sources, 4);
  const FilledRows all = filled(rows, 0, 2);
  EXPECT_EQ(part_of(all.ids, 0, 7), (Ids{11, 12, 1, 0, /**/ 0, 13, 0}));
  EXPECT_EQ(part_of(all.labels, 0, 7), (Ids{kNone, kNone, kNone, kNone, /**/ 13, 1, kNone}));
  EXPECT_EQ(part_of(all.documents, 0, 7), (Ids{1, 1, 1, 0, /**/ 1, 1, 1}));
  EXPECT_EQ(part_of(all.ids, 7, 7), (Ids{11, 12, 13, 1, /**/ 0, 17, 18}));
  EXPECT_EQ(part_of(all.labels, 7, 7), (Ids{kNone, kNone, kNone, kNone, /**/ 17, 18, 1}));
  EXPECT_EQ(rows.num_targets(), 2 + 3);
  const PairTask other(tokenizer, {.context = 3, .source_context = 4, .decoder_start = 9});
  Ids ids(7), labels(7), documents(7);
  other.fill({.first = {11}, .second = {12}}, {.ids = ids, .labels = labels, .documents = documents});
  EXPECT_EQ(ids[4], 9);
}

TEST(Pairs, OfADecoderAreOneTextWhoseEndIsLearned) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = word_tokenizer(1);
  const RecordTokens made =
      tokenized(folder, {{.first = "w1 w2", .second = "w3"}, {.first = "w1 w2 w3 w4 w5 w6", .second = "w7 w8 w9 w10"}},
                tokenizer);
  const auto rows_of = [&](int64_t context) {
    return RecordTaskValidation(RecordList(made.tokens, made.index),
                                std::make_shared<const PairTask>(tokenizer, PairTask::Settings{.context = context}));
  };
  const FilledRows all = filled(rows_of(6), 0, 2);
  EXPECT_EQ(part_of(all.ids, 0, 6), (Ids{11, 12, 1, 13, 0, 0}));
  EXPECT_EQ(part_of(all.labels, 0, 6), (Ids{kNone, kNone, 13, 1, kNone, kNone}));
  // 7 tokens with the ends, so that 5 of source and target stay: 3 of the longer.
  EXPECT_EQ(part_of(all.ids, 6, 6), (Ids{11, 12, 13, 1, 17, 18}));
  EXPECT_EQ(part_of(all.labels, 6, 6), (Ids{kNone, kNone, kNone, 17, 18, 1}));
  EXPECT_EQ(rows_of(6).num_targets(), 2 + 3);
  const FilledRows least = filled(rows_of(3), 0, 2);
  EXPECT_EQ(least.ids, (Ids{11, 1, 13, 11, 1, 17}));
  EXPECT_EQ(least.labels, (Ids{kNone, 13, 1, kNone, 17, 1}));
  EXPECT_THAT(message_of<ShapeError>([&] { rows_of(2); }), HasSubstr("use at least 3"));
  EXPECT_THAT(message_of<UsageError>([] { PairTask(Tokenizer::bytes(), {.context = 8}); }), HasSubstr("end-of-text"));
  // Without a post-processor the end comes all the same.
  const PairTask bare(word_tokenizer(0, false).with_end_of_text(1), {.context = 4});
  Ids ids(4), labels(4);
  bare.fill({.first = {11}, .second = {1}}, {.ids = ids, .labels = labels});
  EXPECT_EQ(ids, (Ids{11, 1, 1, 0})) << "an end inside a text is text";
  EXPECT_EQ(labels, (Ids{kNone, 1, 1, kNone}));
}

/// 7 records of one word each, of several sources.
class Records : public ::testing::Test {
 protected:
  static std::vector<Record> numbered(int first, int count) {
    std::vector<Record> records;
    for (int i = first; i < first + count; ++i) records.push_back({.first = "w" + std::to_string(i), .label = "a"});
    return records;
  }
  RecordTaskRows rows(const std::vector<std::pair<const RecordTokens*, double>>& sources, uint64_t seed = 3) const {
    std::vector<RecordSource> all;
    for (const auto& [made, weight] : sources) all.push_back({RecordList(made->tokens, made->index), weight, "a file"});
    return {std::move(all), std::make_shared<const ClassifyTask>(tokenizer, 3, false, LabelPlace::first), seed};
  }
  static std::multiset<int64_t> first_ids(const FilledRows& all) {
    std::multiset<int64_t> ids;
    for (size_t t = 0; t < all.ids.size(); t += 3) ids.insert(all.ids[t]);
    return ids;
  }

  const TemporaryFolder folder;
  const Tokenizer tokenizer = word_tokenizer(0);
  const RecordTokens seven = tokenized(folder, numbered(0, 7), tokenizer, {"a"});
  const RecordTokens three = tokenized(folder, numbered(50, 3), tokenizer, {"a"});
};

TEST_F(Records, EachEpochVisitsEveryRecordInAnotherOrder) {
  const RecordTaskRows all = rows({{&seven, 1}});
  std::set<Ids> orders;
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    const FilledRows visited = filled(all, 7 * epoch, 7);
    EXPECT_EQ(first_ids(visited), (std::multiset<int64_t>{10, 11, 12, 13, 14, 15, 16}));
    orders.insert(visited.ids);
  }
  EXPECT_GE(orders.size(), 5U);
  EXPECT_DOUBLE_EQ(all.epochs(0, 21).value(), 3);
  EXPECT_EQ(all.num_targets(0, 100), 100);
  EXPECT_EQ(all.position(4), 12);
  // A batch larger than the records, in pieces.
  const FilledRows whole = filled(all, 40, 20);
  Ids joined;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const FilledRows part = filled(rows({{&seven, 1}}), 40 + rank * 5, 5);
    joined.insert(joined.end(), part.ids.begin(), part.ids.end());
  }
  EXPECT_EQ(joined, whole.ids);
  EXPECT_NE(filled(rows({{&seven, 1}}, 4), 40, 20).ids, whole.ids) << "another seed";
}

TEST_F(Records, OneRecordIsEveryRow) {
  const TemporaryFolder other;
  const RecordTokens one = tokenized(other, numbered(5, 1), tokenizer, {"a"});
  EXPECT_EQ(filled(rows({{&one, 1}}), 3, 2).ids, (Ids{15, 1, 0, 15, 1, 0}));
  EXPECT_THAT(message_of<DataError>([&] {
                const RecordTokens none = tokenized(other, {}, tokenizer);
                rows({{&none, 1}});
              }),
              HasSubstr("a file: has no record"));
}

TEST_F(Records, MixturesHaveTheirShares) {
  const RecordTaskRows all = rows({{&seven, 3}, {&three, 1}});
  const std::multiset<int64_t> ids = first_ids(filled(all, 0, 4 * 21));
  for (int64_t id = 10; id < 17; ++id) EXPECT_EQ(ids.count(id), 9U);
  for (int64_t id = 60; id < 63; ++id) EXPECT_EQ(ids.count(id), 7U);
  EXPECT_EQ(all.drawn(8), (std::vector<int64_t>{6, 2}));
}

TEST(RecordTokens, ComeFromTheCache) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = word_tokenizer(0);
  const std::vector<Record> records{{.line = 1, .first = "w1 w2", .second = "w3", .label = "b"},
                                    {.line = 2, .first = "w4", .label = "a"}};
  const RecordTokens made = tokenized(folder, records, tokenizer, {"a", "b"});
  const RecordList list(made.tokens, made.index);
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list.read(0).first, (std::vector<int32_t>{11, 12}));
  EXPECT_EQ(list.read(0).second, (std::vector<int32_t>{13}));
  EXPECT_EQ(list.read(0).label, 1);
  EXPECT_EQ(list.read(1).first, (std::vector<int32_t>{14}));
  EXPECT_EQ(list.size_of(1).second, 0);
  EXPECT_EQ(made.tokens.info().text_bytes, 9);
  const auto when = std::filesystem::last_write_time(made.tokens.path());
  EXPECT_EQ(tokenized(folder, records, tokenizer, {"a", "b"}).tokens.path(), made.tokens.path());
  EXPECT_EQ(std::filesystem::last_write_time(made.tokens.path()), when) << "it was built again";
  EXPECT_NE(tokenized(folder, records, tokenizer, {"b", "a"}).tokens.path(), made.tokens.path()) << "other numbers";
  // A damaged index is built again.
  write_file(made.index.path(), "damaged");
  EXPECT_EQ(tokenized(folder, records, tokenizer, {"a", "b"}).index.size(), 6);
  EXPECT_THAT(message_of<DataError>([&] {
                tokenized(folder, records, tokenizer, {"a", "bee"});
              }),
              AllOf(HasSubstr("file:1: its label b is none of the 2"), HasSubstr("the nearest is bee")));
}

TEST(ClassNames, AreSorted) {
  const auto names = [](const std::vector<std::string>& labels) {
    std::vector<std::string> documents;
    for (const std::string& label : labels) documents.push_back(Record{.first = "a", .label = label}.to_json());
    const std::vector<std::string_view> views(documents.begin(), documents.end());
    return class_names_of(views);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"pos", "neg", "pos", "Zed"}), (Names{"Zed", "neg", "pos"}));
  EXPECT_EQ(names({"10", "2", "-1", "2"}), (Names{"-1", "2", "10"}));
  EXPECT_EQ(names({"10", "2", "x"}), (Names{"10", "2", "x"})) << "one is no number";
  EXPECT_EQ(names({"10", "02"}), (Names{"02", "10"}));
}

/// Documents of files, and what is wrong with a line.
class RecordFiles : public ::testing::Test {
 protected:
  Corpus open(const std::string& text, bool skips = false,
              const RecordFields& fields = {.first = "text", .second = "other", .label = "label"}) const {
    write_file(folder / "r.jsonl", text);
    const std::vector<std::filesystem::path> files{folder / "r.jsonl"};
    return {
        files, folder / "cache", {.skips_bad_lines = skips, .record = std::make_shared<const RecordFields>(fields)}};
  }
  std::string refusal(const std::string& line) const {
    const std::string good = R"({"text":"a","other":"b","label":1})";
    return message_of<DataError>([&] { open(good + "\n\n" + line + "\n"); });
  }

  const TemporaryFolder folder;
};

TEST_F(RecordFiles, HaveADocumentForEachLine) {
  const Corpus corpus = open(R"({"text":"a","other":"b","label":1})"
                             "\n\n"
                             R"({"other":"ö","label":"x y","more":[],"text":"c"})"
                             "\n");
  ASSERT_EQ(corpus.documents().size(), 2U);
  const Record second = Record::from_json(corpus.documents()[1]);
  EXPECT_EQ(second.line, 3);
  EXPECT_EQ(second.first, "c");
  EXPECT_EQ(second.second, "ö");
  EXPECT_EQ(second.label, "x y");
  EXPECT_EQ(Record::from_json(corpus.documents()[0]).label, "1");
  EXPECT_EQ(*corpus.file_of(corpus.documents()[1]), folder / "r.jsonl");
  EXPECT_EQ(corpus.file_of("elsewhere"), nullptr);
}

TEST_F(RecordFiles, BadLinesAreNamed) {
  const std::string place = (folder / "r.jsonl").string() + ":3";
  EXPECT_THAT(refusal(R"({"text":"a","label":1})"), AllOf(HasSubstr(place), HasSubstr("has no field other")));
  EXPECT_THAT(refusal(R"({"text":"","other":"b","label":1})"), AllOf(HasSubstr(place), HasSubstr("empty text")));
  EXPECT_THAT(refusal(R"({"text":["a"],"other":"b","label":1})"), AllOf(HasSubstr(place), HasSubstr("not a string")));
  EXPECT_THAT(refusal(R"({"text":"a","other":"b","label":1.5})"), AllOf(HasSubstr(place), HasSubstr("no label")));
  EXPECT_THAT(refusal(R"({"text":"a","other":"b","label":""})"), AllOf(HasSubstr(place), HasSubstr("no label")));
  EXPECT_THAT(refusal(R"({"text":"a","other":"b","label":true})"), AllOf(HasSubstr(place), HasSubstr("no label")));
  EXPECT_THAT(refusal("text"), AllOf(HasSubstr(place), HasSubstr("not JSON")));
  const Corpus corpus = open(R"({"text":"","other":"b","label":1})"
                             "\n"
                             R"({"text":"a","other":"b","label":1})"
                             "\n",
                             true);
  EXPECT_EQ(corpus.documents().size(), 1U);
  EXPECT_EQ(corpus.num_skipped_lines(), 1);
}

TEST_F(RecordFiles, OtherFieldsAreOtherDocuments) {
  const std::string text = R"({"text":"a","other":"b","label":1})"
                           "\n";
  EXPECT_EQ(Record::from_json(open(text).documents()[0]).first, "a");
  EXPECT_EQ(Record::from_json(open(text, false, {.first = "other"}).documents()[0]).first, "b");
  write_file(folder / "plain.txt", "just text");
  const std::vector<std::filesystem::path> files{folder / "plain.txt"};
  EXPECT_THAT(message_of<DataError>(
                  [&] { Corpus(files, folder / "cache", {.record = std::make_shared<const RecordFields>()}); }),
              HasSubstr("no records"));
}

}  // namespace
}  // namespace caravan::record_task_test
