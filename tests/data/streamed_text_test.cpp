#include "caravan/data/windows/streamed_text.h"

#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "tests/data/compress.h"
#include "tests/data/support.h"

namespace caravan::streamed_text_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string joined(const std::vector<std::string>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::string());
}

class StreamedTextTest : public ::testing::Test {
 protected:
  StreamedText text(const std::vector<std::pair<std::string, std::string>>& files,
                    StreamedText::Options options = {.shard_bytes = 100}) {
    std::vector<std::filesystem::path> paths;
    for (const auto& [name, content] : files) {
      write_file(folder / name, content);
      paths.push_back(folder / name);
    }
    return {paths, options};
  }
  static std::vector<std::vector<std::string>> shards(StreamedText& text) {
    std::vector<std::vector<std::string>> all;
    for (TextPlace place; !text.is_end(place);) {
      StreamedText::Shard shard = text.read(place);
      all.push_back(std::move(shard.documents));
      place = shard.end;
    }
    return all;
  }
  const TemporaryFolder folder;
  const std::string book = read_file(book_path()).substr(0, 5000);
};

TEST_F(StreamedTextTest, ShardsEndWithTheirLine) {
  StreamedText streamed = text({{"a.txt", book}});
  std::string whole;
  for (const auto& shard : shards(streamed)) {
    ASSERT_EQ(shard.size(), 1U);
    whole += shard.front();
    const size_t last_line = shard.front().rfind('\n', shard.front().size() - 2);
    EXPECT_LT(last_line + 1, 100U) << "the last line begins in the first 100 bytes";
    EXPECT_TRUE(whole.ends_with('\n') || whole.size() == book.size());
  }
  EXPECT_EQ(whole, book);
}

/// Files that are compressed, and reading from the middle, give the same shards.
TEST_F(StreamedTextTest, CompressedFilesHaveTheShardsOfTheirText) {
  StreamedText plain = text({{"a.txt", book}});
  const auto expected = shards(plain);
  for (const auto& [name, content] : {std::pair{"a.gz", gzip(book)}, std::pair{"a.zst", zstd(book)}}) {
    StreamedText packed = text({{name, content}});
    EXPECT_EQ(shards(packed), expected) << name;
    const TextPlace second = packed.read({}).end;
    const TextPlace third = packed.read(second).end;
    EXPECT_EQ(packed.read(third).documents, expected[2]) << name;
    EXPECT_EQ(packed.read(second).documents, expected[1]) << name << ", once more";
  }
  const std::string cut = gzip(book).substr(0, 1000);
  EXPECT_THAT(message_of<DataError>([&] { text({{"cut.gz", cut}}); }), HasSubstr("cut.gz: is truncated"));
}

TEST_F(StreamedTextTest, AShardMayHoldSeveralFiles) {
  StreamedText streamed = text({{"a.txt", "first\n"}, {"b.txt", "second"}, {"c.txt", std::string(95, 'x') + "\nrest"}});
  EXPECT_THAT(shards(streamed),
              ElementsAre(ElementsAre("first\n", "second", std::string(95, 'x') + "\n"), ElementsAre("rest")));
}

TEST_F(StreamedTextTest, LongLinesOfTextAreCutBeforeACharacter) {
  std::string text_of_one_line;
  for (int i = 0; i < 500'000; ++i) text_of_one_line += "xyé";
  StreamedText streamed = text({{"a.txt", text_of_one_line}});
  const auto all = shards(streamed);
  EXPECT_EQ(all.size(), 2U) << "of 2 MB, one cut after 1 MiB and 100 bytes";
  EXPECT_EQ(joined(all.front()) + joined(all.back()), text_of_one_line);
}

TEST_F(StreamedTextTest, JsonLinesAreDocuments) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"number " + std::to_string(i) + "\"}\n\n";
  StreamedText streamed = text({{"a.json", lines}});
  const auto all = shards(streamed);
  EXPECT_GT(all.size(), 4U);
  std::vector<std::string> documents;
  for (const auto& shard : all) documents.insert(documents.end(), shard.begin(), shard.end());
  ASSERT_EQ(documents.size(), 20U);
  EXPECT_EQ(documents[13], "number 13");
}

TEST_F(StreamedTextTest, ErrorsNameFileAndLine) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"number " + std::to_string(i) + "\"}\n";
  StreamedText json = text({{"a.jsonl", lines + "{\"txt\": \"\"}\n"}});
  EXPECT_THAT(message_of<DataError>([&] { shards(json); }), HasSubstr("a.jsonl:21: has no field text, but txt"));
  StreamedText packed = text({{"a.jsonl.gz", gzip(lines + "{")}});
  EXPECT_THAT(message_of<DataError>([&] { shards(packed); }), HasSubstr("a.jsonl.gz:21: is not JSON"));
  StreamedText skipped = text({{"a.jsonl", lines + "{\n" + lines}}, {.format = {.skips_bad_lines = true}});
  EXPECT_EQ(shards(skipped).front().size(), 40U);
  const auto line = std::ranges::count(book, '\n') + 1;
  StreamedText bytes = text({{"b.txt", book + "ab\xff"}});
  EXPECT_THAT(message_of<DataError>([&] { shards(bytes); }),
              AllOf(HasSubstr("b.txt:" + std::to_string(line) + ": is not text in UTF-8"), HasSubstr("5002"),
                    HasSubstr("0xff")));
  EXPECT_THAT(message_of<DataError>([&] { text({{"c.txt", ""}}); }), HasSubstr("c.txt: is empty"));
  EXPECT_THAT(message_of<DataError>([&] { text({{"d.txt", "PAR1 and more"}}); }), HasSubstr("d.txt: is a table"));
  EXPECT_THAT(message_of<DataError>([] { StreamedText({"/dev/zero"}, {}); }),
              HasSubstr("/dev/zero: is not a regular file"));
}

constexpr const char* kChatTemplate =
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role[:1] + m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}";

std::string chat_line(const std::string& ask, const std::string& answer, const std::string& asks = "user") {
  return R"({"messages": [{"role": ")" + asks + R"(", "content": ")" + ask +
         R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
}

/// The documents are those of the whole file, and each part of the text is what it is without streaming.
TEST_F(StreamedTextTest, ChatsAreThoseOfTheWholeFile) {
  const auto chat = std::make_shared<const ChatTemplate>(kChatTemplate, "t", "", "");
  const StreamedText::Options options{
      .format = {.field = "messages", .chat = chat}, .validation_fraction = 0.25, .shard_bytes = 200};
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += chat_line("q" + std::to_string(i), std::string(static_cast<size_t>(i), 'w'));
  StreamedText streamed = text({{"a.jsonl", lines}}, options);
  std::vector<std::string> documents;
  const auto parts = shards(streamed);
  EXPECT_GT(parts.size(), 5U);
  for (const auto& shard : parts) documents.insert(documents.end(), shard.begin(), shard.end());
  const StreamedText::Shard ends = streamed.validation();
  documents.insert(documents.end(), ends.documents.begin(), ends.documents.end());
  const TextFile whole(folder / "a.jsonl", folder / "cache", options.format, DataObserver::none());
  EXPECT_EQ(documents, (std::vector<std::string>{whole.documents().begin(), whole.documents().end()}));
  EXPECT_EQ(whole.chats().answers, 20);
  EXPECT_EQ(whole.chats().empty, 1);
  EXPECT_EQ(ends.chats.answers, std::ssize(ends.documents));
  ChatCounts counts = ends.chats;
  for (TextPlace place; !streamed.is_end(place);) {
    const StreamedText::Shard shard = streamed.read(place);
    counts += shard.chats;
    place = shard.end;
  }
  EXPECT_EQ(counts.answers, 20);
  EXPECT_EQ(counts.empty, 1);

  StreamedText bad = text({{"b.jsonl", lines + chat_line("q", "w", "tool")}}, options);
  EXPECT_THAT(message_of<DataError>([&] { bad.validation(); }), AllOf(HasSubstr("b.jsonl:21"), HasSubstr("no tools")));
  auto skips = options;
  skips.format.skips_bad_lines = true;
  EXPECT_EQ(text({{"b.jsonl", lines + chat_line("q", "w", "tool")}}, skips).validation().documents.back(),
            documents.back());
  EXPECT_THAT(message_of<DataError>([&] { text({{"c.txt", book}}, options); }), HasSubstr("and so no chats"));

  auto other = options;
  other.format.chat = std::make_shared<const ChatTemplate>(std::string(kChatTemplate) + " ", "t", "", "");
  EXPECT_NE(text({{"a.jsonl", lines}}, other).content(), streamed.content());
}

/// A template that exceeds its budget later is no bad line, and the line is that of the file.
TEST_F(StreamedTextTest, ATemplateThatExceedsItsBudgetIsNamedWithItsLine) {
  const std::string source = std::string(kChatTemplate) + "{{ 1 % (messages[0].content | length - 9) }}";
  const StreamedText::Options options{.format = {.field = "messages",
                                                 .skips_bad_lines = true,
                                                 .chat = std::make_shared<const ChatTemplate>(source, "t", "", "")},
                                      .shard_bytes = 150};
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += chat_line("ask", "w");
  StreamedText streamed = text({{"a.jsonl", lines + chat_line("123456789", "w")}}, options);
  EXPECT_THAT(message_of<UsageError>([&] { shards(streamed); }),
              AllOf(HasSubstr("a.jsonl:9"), HasSubstr("divides by zero")));
}

TEST_F(StreamedTextTest, ValidationIsTheEndOfEachFile) {
  std::string accents;
  for (int i = 0; i < 500; ++i) accents += "é";
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n";
  for (double fraction = 0.05; fraction < 0.9; fraction += 0.07) {
    StreamedText streamed =
        text({{"a.txt", accents}, {"b.jsonl", lines}}, {.validation_fraction = fraction, .shard_bytes = 100'000});
    std::vector<std::string> train = shards(streamed).front();
    std::vector<std::string> validation = streamed.validation().documents;
    EXPECT_EQ(train.front() + validation.front(), accents) << fraction;
    EXPECT_NEAR(static_cast<double>(validation.front().size()), 1000 * fraction, 2);
    train.erase(train.begin());
    train.insert(train.end(), validation.begin() + 1, validation.end());
    EXPECT_THAT(train, ElementsAre("one", "two", "three")) << fraction;
  }
  StreamedText capped = text({{"a.txt", accents}}, {.validation_fraction = 0.5, .most_validation_bytes = 10});
  EXPECT_EQ(joined(capped.validation().documents).size(), 10U);
  EXPECT_THAT(message_of<UsageError>([&] {
                text({{"a.gz", gzip(book)}}, {.validation_fraction = 0.1});
              }),
              AllOf(HasSubstr("a.gz is compressed"), HasSubstr("data.validation = ")));
}

TEST_F(StreamedTextTest, IdentityFollowsTheFiles) {
  const StreamedText before = text({{"a.txt", book}});
  const StreamedText same = text({{"b.txt", book}});
  std::filesystem::last_write_time(folder / "a.txt", std::filesystem::file_time_type{});
  EXPECT_EQ(before.content(), same.content());
  EXPECT_NE(before.identity(), same.identity()) << "written at another time";
  EXPECT_NE(before.content(), text({{"c.txt", book + "."}}).content());
  // Only the middle is another, and the time of the last write is set back.
  std::string longer;
  while (longer.size() < 100'000) longer += book;
  const StreamedText first = text({{"d.txt", longer}});
  const auto time = std::filesystem::last_write_time(folder / "d.txt");
  const ContentHash identity = first.identity();
  EXPECT_EQ(first.identity(), identity);
  longer[longer.size() / 2] ^= 1;
  const StreamedText second = text({{"d.txt", longer}});
  std::filesystem::last_write_time(folder / "d.txt", time);
  EXPECT_EQ(second.content(), first.content());
  EXPECT_NE(second.identity(), identity);
  EXPECT_NE(before.content(), text({{"b.txt", book}}, {.shard_bytes = 99}).content());
}

}  // namespace
}  // namespace caravan::streamed_text_test
