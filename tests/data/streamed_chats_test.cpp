#include <algorithm>
#include <gmock/gmock.h>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck.h>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/windows/cache.h"
#include "caravan/data/windows/streamed_windows.h"
#include "caravan/data/windows/train_windows.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"

namespace caravan::streamed_chats_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;

constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "a"}, )"
                              R"({"role": "assistant", "content": "bc"}]})";

/// Random chats of questions and answers in a file, streamed in shards of random size.
class StreamedChats : public ::testing::Test {
 protected:
  struct Row {
    std::vector<int64_t> ids, labels, documents, positions;
    auto operator<=>(const Row&) const = default;
  };
  /// Writes the file, and returns its chats as documents. The first answer is not empty.
  std::vector<std::string> arbitrary() {
    counts_ = {};
    const auto words = rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc")));
    const auto turns = rc::gen::nonEmpty(
        rc::gen::container<std::vector<std::pair<std::string, std::string>>>(rc::gen::pair(words, words)));
    std::string lines;
    std::vector<std::string> documents;
    const auto chats =
        rc::gen::nonEmpty(rc::gen::container<std::vector<std::vector<std::pair<std::string, std::string>>>>(turns));
    for (const auto& chat : *rc::gen::resize(20, chats)) {
      nlohmann::ordered_json messages;
      for (const auto& [ask, answer] : chat) {
        messages.push_back({{"role", "user"}, {"content", ask}});
        const bool is_first = lines.empty() && messages.size() == 1;
        messages.push_back({{"role", "assistant"}, {"content", answer + (is_first ? "c" : "")}});
      }
      lines += nlohmann::ordered_json{{"messages", messages}}.dump() + "\n";
      const RenderedChat rendered = format_.chat->render(messages, nullptr, "x");
      counts_ += counts_of(rendered);
      documents.push_back(rendered.to_json());
    }
    write_file(folder / "chats.jsonl", lines);
    return documents;
  }
  std::unique_ptr<TokenStreams> open(int64_t shard_bytes, std::optional<FillRule> fill, bool builds = true) const {
    std::vector<TokenStreams::Text> texts;
    texts.push_back({StreamedText({folder / "chats.jsonl"}, {.format = format_, .shard_bytes = shard_bytes}), "chats"});
    return std::make_unique<TokenStreams>(
        std::move(texts), Tokenizer::bytes(),
        TokenStreams::Options{.cache = folder / "cache", .builds = builds, .fill = fill, .are_chats = true});
  }
  static TrainWindows windows_of(TokenStreams& streams, int64_t context, bool packs) {
    const std::optional<PackRule> rule = packs ? std::optional(PackRule{}) : std::nullopt;
    return {{{.tokens = nullptr, .name = "chats", .streams = &streams, .packs = rule}}, context, kSeed};
  }
  static Row row(const TrainWindows& windows, int64_t sample, bool packs) {
    const auto context = static_cast<size_t>(windows.context());
    Row one{std::vector<int64_t>(context), std::vector<int64_t>(context), {}, {}};
    if (packs) one.documents = one.positions = one.ids;
    windows.fill(sample, one.ids, one.labels, one.documents, one.positions);
    EXPECT_EQ(windows.num_targets(sample, 1), std::ssize(one.labels) - std::ranges::count(one.labels, kIgnoredLabel));
    return one;
  }

  const TemporaryFolder folder;
  const TextFormat format_{.field = "messages",
                           .chat = std::make_shared<const ChatTemplate>(
                               "{% for m in messages %}{{ m.role[:1] + m.content + '.' }}{% endfor %}"
                               "{% if add_generation_prompt %}a{% endif %}",
                               "t", "", "")};
  ChatCounts counts_;
};

/// The rows of a text that is one shard are those of the whole text, one by one.
TEST_F(StreamedChats, InOneShardAreTheRowsOfTheWholeText) {
  EXPECT_TRUE(rc::check("rows are equal", [&] {
    const std::vector<std::string> documents = arbitrary();
    const std::vector<std::string_view> views(documents.begin(), documents.end());
    const int64_t context = *rc::gen::inRange<int64_t>(3, 30);
    const bool packs = *rc::gen::arbitrary<bool>(), fills = *rc::gen::arbitrary<bool>();
    const ChatTokens chats = open_or_build_chats(folder / "cache", views, Tokenizer::bytes());
    RC_PRE(fills || chats.tokens.size() > context);
    std::shared_ptr<const WholeDocuments> whole;
    if (fills) whole = std::make_shared<const WholeDocuments>(chats.marks, context);
    const Documents packed(chats.marks, ends_chat, true);
    const TrainWindows want(
        {{.tokens = &chats.tokens, .documents = packs ? &packed : nullptr, .marks = &chats.marks, .whole = whole}},
        context, kSeed);
    const auto streams = open(1 << 20, fills ? std::optional(FillRule{0, context}) : std::nullopt);
    const TrainWindows found = windows_of(*streams, context, packs);
    found.prepare(0, 1);
    std::vector<std::string> notes = notes_of(counts_);
    if (fills) notes.insert(notes.begin(), fill_note(*whole, true));
    for (std::string& note : notes) note = "chats, its first part: " + note;
    RC_CLASSIFY(counts_.empty > 0, "empty answers");
    RC_ASSERT(found.notes() == notes);
    for (int64_t k = 0; k < 20; ++k) RC_ASSERT(row(found, k, packs) == row(want, k, packs));
    RC_ASSERT(found.epochs(0, 60) == want.epochs(0, 60));
    RC_ASSERT(found.num_targets(0, 20) == want.num_targets(0, 20));
  }));
}

/// Each shard's rows are those of its own chats, every epoch has the same, and every learned token comes once; ranks
/// that read and a process that resumes have the rows of the one that builds.
TEST_F(StreamedChats, AreWholeWithinAShard) {
  EXPECT_TRUE(rc::check("nothing is lost", [&] {
    const std::vector<std::string> documents = arbitrary();
    const int64_t context = *rc::gen::inRange<int64_t>(3, 30);
    const int64_t shard_bytes = *rc::gen::inRange<int64_t>(200, 2000);
    const bool packs = *rc::gen::arbitrary<bool>();
    const FillRule fill{.end_of_text = 0, .context = context};
    const auto builder = open(shard_bytes, fill);
    const TrainWindows built = windows_of(*builder, context, packs);
    std::vector<Row> rows;
    for (int64_t k = 0; !built.epochs(0, 1) || built.epochs(0, k) < 2; ++k) rows.push_back(row(built, k, packs));
    // The chats of each shard, packed alone.
    std::vector<Row> want;
    StreamedText text({folder / "chats.jsonl"}, {.format = format_, .shard_bytes = shard_bytes});
    int64_t targets = 0;
    size_t next = 0;
    for (TextPlace place; !text.is_end(place);) {
      const StreamedText::Shard shard = text.read(place);
      place = shard.end;
      const std::vector<std::string_view> views(shard.documents.begin(), shard.documents.end());
      for (const std::string_view one : views) RC_ASSERT(one == documents.at(next++));
      const ChatTokens chats = open_or_build_chats(folder / "cache", views, Tokenizer::bytes());
      const auto whole = std::make_shared<const WholeDocuments>(chats.marks, context);
      for (int64_t t = 0; t < chats.marks.size(); ++t) {
        std::vector<int64_t> mark(1);
        chats.marks.read(t, mark);
        targets += (mark[0] & kIsAnswer) != 0 ? 1 : 0;
      }
      if (whole->size() == 0) continue;
      const Documents packed(chats.marks, ends_chat, true);
      const TrainWindows alone(
          {{.tokens = &chats.tokens, .documents = packs ? &packed : nullptr, .marks = &chats.marks, .whole = whole}},
          context, kSeed);
      for (int64_t k = 0; k < whole->size(); ++k) want.push_back(row(alone, k, packs));
    }
    RC_ASSERT(next == documents.size());
    RC_CLASSIFY(builder->num_known(0) > 1, "several shards");
    RC_ASSERT(built.num_targets(0, std::ssize(want)) == targets);
    std::ranges::sort(want);
    for (const std::ptrdiff_t epoch : {0, 1}) {
      std::vector<Row> found(rows.begin() + epoch * std::ssize(want), rows.begin() + (epoch + 1) * std::ssize(want));
      std::ranges::sort(found);
      RC_ASSERT(found == want);
    }
    const auto reader = open(shard_bytes, fill, /*builds=*/false);
    reader->add_records(builder->take_new_records());
    const TrainWindows read = windows_of(*reader, context, packs);
    const auto later = open(shard_bytes, fill);
    const TrainWindows resumed = windows_of(*later, context, packs);
    for (int64_t k = std::ssize(rows) / 2; k < std::ssize(rows); ++k) {
      RC_ASSERT(row(resumed, k, packs) == rows[static_cast<size_t>(k)]);
      RC_ASSERT(row(read, k, packs) == rows[static_cast<size_t>(k)]);
    }
  }));
}

/// A cache without one of the two files of a shard has neither.
TEST_F(StreamedChats, AreMadeAgainWithoutTheirMarks) {
  write_file(folder / "chats.jsonl", kChat);
  const FillRule fill{.end_of_text = 0, .context = 8};
  const Row want = row(windows_of(*open(100, fill), 8, true), 0, true);
  EXPECT_EQ(std::ranges::count_if(want.labels, [](int64_t label) { return label != kIgnoredLabel; }), 3);
  for (int i = 0; i < 2; ++i) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder / "cache")) {
      if (entry.path().extension() == ".tokens") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    ASSERT_EQ(files.size(), 2U);
    fs::remove(files[static_cast<size_t>(i)]);
    const auto streams = open(100, fill);
    EXPECT_EQ(row(windows_of(*streams, 8, true), 0, true), want);
  }
}

/// Records belong to the way in which chats become tokens, and one without the counts of chats is made again.
TEST_F(StreamedChats, ARecordOfAnEarlierVersionIsMadeAgain) {
  write_file(folder / "chats.jsonl", kChat);
  const ShardRecord want = open(100, FillRule{0, 8})->record(0, 0);
  ContentHasher key;
  const ContentHash text = StreamedText({folder / "chats.jsonl"}, {.format = format_, .shard_bytes = 100}).identity();
  const ContentHash tokenizer = Tokenizer::bytes().hash();
  const auto end = static_cast<uint64_t>(Tokenizer::bytes().end_of_text().value_or(-1));
  for (const uint64_t part :
       {text.high, text.low, tokenizer.high, tokenizer.low, end, uint64_t{0}, kDecoding, kMarking, uint64_t{8}}) {
    key.update(part);
  }
  const fs::path path = folder / "cache" / (key.value().hex() + ".shard");
  ASSERT_TRUE(fs::exists(path));
  const std::string old = fmt::format("caravan-shard-3 {} {} 999 1 0 1 1", want.content.high, want.content.low);
  ContentHasher hasher;
  hasher.update(old);
  write_file(path, old + " " + hasher.value().hex() + "\n");
  const ShardRecord again = open(100, FillRule{0, 8})->record(0, 0);
  EXPECT_EQ(again.num_tokens, want.num_tokens);
  EXPECT_EQ(again.chats.value().answers, 1);
}

/// What can be learned of the first part is nothing but how answers end; the next part is not read.
TEST_F(StreamedChats, WithoutAnAnswerAreRefused) {
  const std::string chat = kChat;
  const std::string empty = std::string(chat).replace(chat.find("bc"), 2, "") + "\n";
  write_file(folder / "chats.jsonl", empty + empty + chat);
  for (const auto& fill : {std::optional(FillRule{0, 8}), std::optional<FillRule>()}) {
    const auto streams = open(100, fill);
    EXPECT_THAT(message_of<DataError>([&] { windows_of(*streams, 8, false).prepare(0, 1); }),
                HasSubstr("the first part of chats: has chats whose answers are all empty: 2 of them"));
    EXPECT_EQ(windows_of(*open(1000, fill), 8, false).prepare(0, 1).size(), 1U) << "one part with an answer";
  }
}

TEST_F(StreamedChats, ARankThatReadsKeepsNoTemplate) {
  write_file(folder / "chats.jsonl", kChat);
  const auto owners = format_.chat.use_count();
  const auto reader = open(100, {}, /*builds=*/false);
  EXPECT_EQ(format_.chat.use_count(), owners);
  const auto builder = open(100, {});
  EXPECT_EQ(format_.chat.use_count(), owners + 1);
}

}  // namespace
}  // namespace caravan::streamed_chats_test
