#include "caravan/data/windows/token_file.h"

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "tests/data/support.h"

namespace caravan::token_file_test {
namespace {

std::vector<int64_t> all_of(const TokenFile& file) {
  std::vector<int64_t> ids(static_cast<size_t>(file.size()));
  file.read(0, ids);
  return ids;
}

std::filesystem::path write_tokens(const std::filesystem::path& path, const std::vector<int32_t>& ids,
                                   int64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size);
  const std::span<const int32_t> all(ids);
  writer.append(all.first(ids.size() / 3));
  writer.append(all.subspan(ids.size() / 3));
  writer.finish(1234, {.high = 5, .low = 6});
  return path;
}

TEST(TokenFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  for (const auto& [vocab_size, id_bytes] :
       {std::pair{int64_t{65536}, 2}, {int64_t{65537}, 4}, {int64_t{1} << 31, 4}}) {
    const std::vector<int32_t> ids{0, 7, static_cast<int32_t>(vocab_size - 1), 255, 256};
    const auto path = write_tokens(folder / "t.tokens", ids, vocab_size);
    const TokenFile file = TokenFile::open(path);
    EXPECT_EQ(file.info(), (TokenFileInfo{5, vocab_size, 1234, {5, 6}}));
    EXPECT_EQ(all_of(file), std::vector<int64_t>(ids.begin(), ids.end()));
    EXPECT_EQ(std::filesystem::file_size(path), 72U + 5U * static_cast<unsigned>(id_bytes));
  }
  EXPECT_EQ(folder.count_files(), 1);
  EXPECT_EQ(TokenFile::open(write_tokens(folder / "t.tokens", {}, 10)).size(), 0);
}

TEST(TokenFile, RefusesToReadBeyondItsEnds) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(write_tokens(folder / "t", {1, 2, 3}, 10));
  std::vector<int64_t> out(2);
  file.read(1, out);
  EXPECT_EQ(out, (std::vector<int64_t>{2, 3}));
  for (const int64_t first : {int64_t{-1}, int64_t{2}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    EXPECT_THROW(file.read(first, out), ShapeError) << first;
  }
}

TEST(TokenFile, RefusesIdsOutsideItsVocabulary) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder / "t", 10);
  EXPECT_THROW(writer.append(std::vector{10}), UsageError);
  EXPECT_THROW(writer.append(std::vector{-1}), UsageError);
  EXPECT_THROW(TokenFileWriter(folder / "u", 0), UsageError);
}

TEST(TokenFile, LeavesNothingWithoutFinish) {
  const TemporaryFolder folder;
  { TokenFileWriter(folder / "t", 10).append(std::vector{1, 2}); }
  EXPECT_EQ(folder.count_files(), 0);
  EXPECT_THROW(TokenFileWriter(folder / "missing/t", 10), ResourceError);
}

TEST(TokenFile, RefusesForeignFiles) {
  const TemporaryFolder folder;
  const auto refusal = [&](std::string_view content) {
    write_file(folder / "t", content);
    return message_of<DataError>([&] { TokenFile::open(folder / "t"); });
  };
  for (const std::string& content :
       {std::string(), std::string("text"), std::string(500, '\0'), read_file(book_path())}) {
    EXPECT_NE(refusal(content).find("is not a token file"), std::string::npos);
  }
  EXPECT_THROW(TokenFile::open(folder / "missing"), DataError);
  EXPECT_THROW(TokenFile::open(folder.path()), DataError);
}

/// A file is refused if any byte was changed, or if it was truncated or extended.
TEST(TokenFile, RefusesDamage) {
  const TemporaryFolder folder;
  const std::string whole = read_file(write_tokens(folder / "t", {1, 2, 3, 65000, 5, 6, 7}, 65536));
  const auto is_refused = [&](std::string_view content) {
    write_file(folder / "t", content);
    try {
      TokenFile::open(folder / "t");
      return false;
    } catch (const DataError&) {
      return true;
    }
  };
  ASSERT_FALSE(is_refused(whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int bit : {0, 7}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_TRUE(is_refused(changed)) << "byte " << i;
    }
    EXPECT_TRUE(is_refused(whole.substr(0, i))) << "cut at " << i;
  }
  EXPECT_TRUE(is_refused(whole + '\0'));
  EXPECT_TRUE(is_refused(whole + whole));
}

/// Malicious numbers with a matching hash, which is not secret.
TEST(TokenFile, RefusesHostileNumbers) {
  const TemporaryFolder folder;
  const std::string whole = read_file(write_tokens(folder / "t", {1, 2, 3, 9}, 10));
  const auto refusal = [&](size_t offset, uint64_t value, size_t size) {
    std::string changed = whole;
    std::memcpy(changed.data() + offset, &value, size);
    ContentHasher hasher;
    hasher.update(std::string_view(changed).substr(72));
    hasher.update(std::string_view(changed).substr(0, 56));
    const ContentHash hash = hasher.value();
    std::memcpy(changed.data() + 56, &hash, sizeof hash);
    write_file(folder / "t", changed);
    return message_of<DataError>([&] { TokenFile::open(folder / "t"); });
  };
  EXPECT_NE(refusal(24, 9, 8).find("holds the id 9 of a vocabulary of 9"), std::string::npos);
  EXPECT_NE(refusal(8, 2, 4).find("version 2"), std::string::npos);
  for (const uint64_t id_bytes : {0, 1, 4, 8}) EXPECT_NE(refusal(12, id_bytes, 4).find("damaged"), std::string::npos);
  for (const uint64_t count : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 63, ~uint64_t{0}, (uint64_t{1} << 63) + 4}) {
    EXPECT_NE(refusal(16, count, 8).find("truncated or damaged"), std::string::npos);
  }
  for (const uint64_t vocab_size : {uint64_t{0}, uint64_t{70000}, ~uint64_t{0}}) {
    EXPECT_NE(refusal(24, vocab_size, 8).find("damaged"), std::string::npos);
  }
}

class Cache : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder / "some/cache";
  const Tokenizer gpt2 = Tokenizer::load(fixture("gpt2.json"));
  const std::vector<std::string_view> documents{"Call me Ishmael.", " Some years ago"};

  int64_t count_files() const {
    return std::distance(std::filesystem::directory_iterator(cache), std::filesystem::directory_iterator());
  }
};

TEST_F(Cache, HoldsTheDocumentsWithTheEndOfTextBetween) {
  const TokenFile file = open_or_build(cache, documents, gpt2);
  std::vector<int32_t> expected = gpt2.encode(documents[0]);
  expected.push_back(*gpt2.end_of_text());
  const std::vector<int32_t> second = gpt2.encode(documents[1]);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(all_of(file), std::vector<int64_t>(expected.begin(), expected.end()));
  EXPECT_EQ(file.info().text_bytes, 31);
  EXPECT_EQ(file.info().vocab_size, gpt2.vocab_size());

  const TokenFile bytes = open_or_build(cache, documents, Tokenizer::bytes());
  EXPECT_EQ(bytes.size(), 31);
}

TEST_F(Cache, IsFoundAgain) {
  const auto path = open_or_build(cache, documents, gpt2).path();
  const auto written = std::filesystem::last_write_time(path);
  EXPECT_EQ(open_or_build(cache, documents, gpt2).path(), path);
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
  EXPECT_EQ(count_files(), 1);
}

TEST_F(Cache, AnotherTextOrTokenizerIsAnotherFile) {
  const std::vector<std::string_view> other{"Call me Ishmael.", " Some years agO"};
  const std::vector<std::string_view> cut_elsewhere{"Call me Ishmael. ", "Some years ago"};
  open_or_build(cache, documents, gpt2);
  open_or_build(cache, other, gpt2);
  open_or_build(cache, cut_elsewhere, gpt2);
  open_or_build(cache, documents, Tokenizer::load(fixture("qwen.json")));
  open_or_build(cache, documents, gpt2.with_end_of_text(7));
  EXPECT_EQ(count_files(), 5);
}

TEST_F(Cache, ADamagedFileIsRebuilt) {
  const TokenFile first = open_or_build(cache, documents, gpt2);
  std::string content = read_file(first.path());
  content.back() = static_cast<char>(content.back() ^ 1);
  const auto path = first.path();
  std::filesystem::remove(path);  // `first` keeps its mapping of the old file
  write_file(path, content);
  EXPECT_EQ(all_of(open_or_build(cache, documents, gpt2)), all_of(first));
  EXPECT_EQ(count_files(), 1);
}

TEST_F(Cache, ManyRanksBuildAtOnce) {
  std::vector<std::thread> ranks;
  std::vector<std::vector<int64_t>> ids(6);
  for (auto& out : ids) ranks.emplace_back([&] { out = all_of(open_or_build(cache, documents, gpt2)); });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& out : ids) EXPECT_EQ(out, ids[0]);
  EXPECT_EQ(count_files(), 1);
}

TEST_F(Cache, NamesTheFolderThatCannotBeCreated) {
  write_file(folder / "file", "");
  const auto message = message_of<ResourceError>([&] { open_or_build(folder / "file/cache", documents, gpt2); });
  EXPECT_NE(message.find("file/cache"), std::string::npos) << message;
}

TEST(Split, ValidationIsTheLastTenth) {
  const TextSplit ten = split_text("0123456789");
  EXPECT_EQ(ten.train, (std::vector<std::string_view>{"012345678"}));
  EXPECT_EQ(ten.validation, (std::vector<std::string_view>{"9"}));
  const TextSplit eleven = split_text("0123456789a");
  EXPECT_EQ(eleven.validation, (std::vector<std::string_view>{"9a"}));
  const TextSplit one = split_text("x");
  EXPECT_TRUE(one.train.empty());
  EXPECT_EQ(one.validation, (std::vector<std::string_view>{"x"}));
}

TEST(Split, CutsNoCharacter) {
  const std::string text = "aaaaaaa\xF0\x9F\x98\x80";  // byte 9 of 11 is inside the last character
  const TextSplit split = split_text(text);
  EXPECT_EQ(split.train, (std::vector<std::string_view>{"aaaaaaa"}));
  EXPECT_EQ(split.validation, (std::vector<std::string_view>{"\xF0\x9F\x98\x80"}));
}

TEST(Split, CutsTheWholeTextNotEachDocument) {
  const std::vector<std::string_view> documents{"0123", "", "456789", "abcdefghij", "klmnopqrst"};
  const TextSplit split = split_text(documents);
  EXPECT_EQ(split.train, (std::vector<std::string_view>{"0123", "456789", "abcdefghij", "klmnopq"}));
  EXPECT_EQ(split.validation, (std::vector<std::string_view>{"rst"}));
  const std::vector<std::string_view> at_the_border{"012345678", "9"};
  EXPECT_EQ(split_text(at_the_border).validation, (std::vector<std::string_view>{"9"}));
}

TEST(Split, IsWholeForAnyDocuments) {
  EXPECT_TRUE(rc::check("parts joined are the text", [] {
    const auto documents = *rc::gen::container<std::vector<std::string>>(rc::gen::arbitrary<std::string>());
    std::string all;
    for (const auto& document : documents) all += document;
    if (all.empty()) return;
    const std::vector<std::string_view> views(documents.begin(), documents.end());
    const TextSplit split = split_text(views);
    std::string joined;
    for (const auto part : split.train) joined += part;
    const size_t cut = joined.size();
    for (const auto part : split.validation) joined += part;
    RC_ASSERT(joined == all);
    RC_ASSERT(cut <= all.size() * 9 / 10);
  }));
}

TEST(Split, RefusesAnEmptyText) {
  EXPECT_NE(message_of<DataError>([] { split_text(""); }).find("is empty"), std::string::npos);
  EXPECT_THROW(split_text(std::vector<std::string_view>{"", ""}), DataError);
}

TEST(Split, TakesAnyFraction) {
  const std::string text(1'000'007, 'a');
  EXPECT_EQ(num_bytes(split_text(std::vector<std::string_view>{text}, 0.3).validation), 300'003);  // rounded up
  EXPECT_TRUE(split_text(std::vector<std::string_view>{text}, 0).validation.empty());
}

}  // namespace
}  // namespace caravan::token_file_test
