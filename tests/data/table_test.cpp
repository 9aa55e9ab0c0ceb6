#include "caravan/data/files/table.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/record.h"
#include "caravan/data/files/text_file.h"
#include "caravan/data/files/text_paths.h"
#include "tests/data/support.h"

namespace caravan::table_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Each of fixtures/tables, which have the same rows.
class Tables : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> documents(const fs::path& path, const std::string& field) const {
    const TextFile file(path, folder / "cache", {.field = field}, DataObserver::none());
    return {file.documents().begin(), file.documents().end()};
  }
  fs::path path() const { return fixture("tables") / GetParam(); }
  const TemporaryFolder folder;
};

INSTANTIATE_TEST_SUITE_P(Formats, Tables, ::testing::Values("rows.parquet", "file.arrow", "stream.arrow"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST_P(Tables, EachRowWithATextIsADocument) {
  if (!reads_tables()) GTEST_SKIP() << "built without Apache Arrow";
  const auto texts = ElementsAre("Call me Ishmael.", "Some years ago", "é €");
  EXPECT_THAT(documents(path(), "text"), texts);
  EXPECT_THAT(documents(path(), "text"), texts) << "from the cache";
  EXPECT_THAT(documents(path(), "long"), texts);
  EXPECT_THAT(documents(path(), "coded"), texts);
  EXPECT_THAT(documents(path(), "meta.body"), ElementsAre("body 0", "body 1", "body 2", "body 3", "body 4"));
}

TEST_P(Tables, AnotherSchemaIsRefusedWithItsColumns) {
  if (!reads_tables()) GTEST_SKIP() << "built without Apache Arrow";
  for (const char* field : {"txt", "id", "meta", "meta.length", "meta.none"}) {
    EXPECT_THAT(message_of<DataError>([&] { documents(path(), field); }),
                AllOf(HasSubstr(std::string(GetParam()) + ": has no column of text " + field),
                      HasSubstr("id (int64), text (string), long (large_string)"), HasSubstr("data.field = ")));
  }
  EXPECT_THAT(message_of<DataError>([&] { documents(path(), "txt"); }), HasSubstr("data.field = \"text\""));
}

TEST_P(Tables, ADamagedFileIsRefused) {
  if (!reads_tables()) GTEST_SKIP() << "built without Apache Arrow";
  const std::string content = read_file(path());
  write_file(folder / "cut", content.substr(0, content.size() / 2));
  EXPECT_THAT(message_of<DataError>([&] { documents(folder / "cut", "text"); }), HasSubstr("cut: "));
}

TEST_P(Tables, EachRowIsARecord) {
  if (!reads_tables()) GTEST_SKIP() << "built without Apache Arrow";
  const auto records = [&](const RecordFields& fields, bool skips_bad_lines = false) {
    const TextFormat format{.skips_bad_lines = skips_bad_lines, .record = std::make_shared<const RecordFields>(fields)};
    const TextFile file(path(), folder / "cache", format, DataObserver::none());
    std::vector<std::string> found;
    for (const std::string_view document : file.documents()) {
      const Record one = Record::from_json(document);
      found.push_back(std::to_string(one.line) + " " + one.first + "|" + one.second + "|" + one.label + "|" +
                      one.third);
    }
    return found;
  };
  EXPECT_THAT(records({.first = "meta.body", .label = "id"}),
              ElementsAre("1 body 0||1|", "2 body 1||2|", "3 body 2||3|", "4 body 3||4|", "5 body 4||5|"));
  EXPECT_THAT(records({.first = "meta.body", .label = "coded"}, /*skips_bad_lines=*/true),
              AllOf(Contains("1 body 0||Call me Ishmael.|"), Contains("4 body 3||Some years ago|"),
                    Not(Contains("3 body 2|||"))));
  const RecordFields of_dates{.first = "meta.body", .label = "meta.when"};
  EXPECT_THAT(message_of<DataError>([&] { records(of_dates); }),
              HasSubstr("column meta.when has values of a kind that is not read: timestamp"));
  const RecordFields preference{.first = "meta.body", .second = "text", .third = "long"};
  EXPECT_THAT(records(preference, /*skips_bad_lines=*/true),
              ElementsAre("1 body 0|Call me Ishmael.||Call me Ishmael.", "4 body 3|Some years ago||Some years ago",
                          "5 body 4|é €||é €"));
  EXPECT_THAT(message_of<DataError>([&] { records(preference); }),
              HasSubstr(std::string(GetParam()) + ":2: its field text is an empty text"));
  EXPECT_THAT(message_of<DataError>([&] { records({.first = "text", .label = "idd"}); }),
              AllOf(HasSubstr("has no column idd; its columns are id, text, long, meta"), HasSubstr("such as id")));
  EXPECT_THAT(message_of<DataError>([&] { records({.first = "meta.bdy", .label = "id"}); }),
              AllOf(HasSubstr("has no column meta.bdy; its columns are id, text"), HasSubstr("such as meta")));
}

/// As the same chats in JSON lines: members that a message lacks, and rows without tools, are not there.
TEST(TablesOfChats, EachRowIsAChat) {
  if (!reads_tables()) GTEST_SKIP() << "built without Apache Arrow";
  const TemporaryFolder folder;
  const auto chat = std::make_shared<ChatTemplate>(
      "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m | tojson }}{% endfor %}", "t", "", "");
  const auto documents = [&](const fs::path& path, const std::string& field) {
    const TextFile file(path, folder / "cache", {.field = field, .chat = chat}, DataObserver::none());
    std::vector<std::string> texts;
    for (const std::string_view document : file.documents()) texts.push_back(RenderedChat::from_json(document).text);
    return texts;
  };
  const auto wanted = ElementsAre(
      R"([{"name": "weather", "city": 1}]{"role": "system", "content": "Be brief."}{"role": "user", "content": "a"})"
      R"({"role": "assistant", "content": "b", "weight": 1})",
      R"({"role": "user", "content": "é"}{"role": "assistant", "content": "d"})");
  for (const char* name : {"chats.parquet", "chats.arrow"}) {
    for (const char* field : {"messages", "json"}) {
      EXPECT_THAT(documents(fixture("tables") / name, field), wanted) << name << " " << field;
    }
    EXPECT_THAT(
        message_of<DataError>([&] { documents(fixture("tables") / name, "talk"); }),
        AllOf(HasSubstr("has no column talk; its columns are messages, json, tools"), HasSubstr("data.field = ")));
    EXPECT_THAT(message_of<DataError>([&] { documents(fixture("tables") / name, "tools"); }),
                HasSubstr(std::string(name) + ":1"));
  }
}

TEST_P(Tables, WithoutArrowTheMessageSaysHowToBuild) {
  if (reads_tables()) GTEST_SKIP() << "built with Apache Arrow";
  EXPECT_THAT(message_of<DataError>([&] { documents(path(), "text"); }),
              AllOf(HasSubstr("this build reads no tables"), HasSubstr("to_json"), HasSubstr("CARAVAN_DEPS")));
}

/// What Dataset.save_to_disk and DatasetDict.save_to_disk write.
TEST(TableFolders, DescriptionsBesideTablesAreNotTexts) {
  const TemporaryFolder folder;
  for (const char* split : {"test", "train"}) {
    fs::create_directories(folder / split);
    fs::copy(fixture("tables") / "stream.arrow", folder / split / "data-00000-of-00001.arrow");
    write_file(folder / split / "state.json", "{}");
  }
  if (reads_tables()) {
    EXPECT_THAT(text_files(folder / "train"), ElementsAre(folder / "train/data-00000-of-00001.arrow"));
  } else {
    EXPECT_THAT(message_of<DataError>([&] { text_files(folder / "train"); }),
                AllOf(HasSubstr("data-00000-of-00001.arrow"), HasSubstr("to_json"), HasSubstr("CARAVAN_DEPS")));
  }
  write_file(folder / "dataset_dict.json", "{}");
  EXPECT_THAT(message_of<DataError>([&] { text_files(folder.path()); }),
              AllOf(HasSubstr("has a folder for each split: test, train"), HasSubstr("/train")));
}

}  // namespace
}  // namespace caravan::table_test
