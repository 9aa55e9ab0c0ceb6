#include "caravan/data/windows/whole_documents.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/windows/best_fit.h"
#include "caravan/data/windows/train_windows.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"

namespace caravan::whole_documents_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 0;

TokenFile file_of(const TemporaryFolder& folder, const std::string& name, const std::vector<int32_t>& ids) {
  TokenFileWriter writer(folder / name, 1 << 22);
  writer.append(ids);
  writer.finish(std::ssize(ids), {});
  return TokenFile::open(folder / name);
}

/// Documents of these lengths; token i of the text is i + 1, and the last one of each is kEnd.
TokenFile documents_of(const TemporaryFolder& folder, const std::vector<int64_t>& lengths, const std::string& name) {
  std::vector<int32_t> ids;
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) {
      ids.push_back(t + 1 == length ? kEnd : static_cast<int32_t>(std::ssize(ids)) + 1);
    }
  }
  return file_of(folder, name, ids);
}

/// The same with the fullest bin found by looking at all of them.
std::vector<int64_t> plain_best_fit(std::vector<uint32_t> sizes, int64_t room) {
  std::ranges::stable_sort(sizes, std::greater());
  std::vector<int64_t> used;
  for (const uint32_t size : sizes) {
    auto best = used.end();
    for (auto bin = used.begin(); bin != used.end(); ++bin) {
      if (*bin + size <= room && (best == used.end() || *bin > *best)) best = bin;
    }
    if (best == used.end()) best = used.insert(used.end(), 0);
    *best += size;
  }
  std::ranges::sort(used);
  return used;
}

TEST(BestFit, FillsBinsAsAPlainSearchDoes) {
  EXPECT_TRUE(rc::check("the bins have the same contents", [] {
    const auto room = *rc::gen::inRange<uint32_t>(1, 60);
    const auto sizes = *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(1, room + 1));
    const Bins bins = best_fit_decreasing(sizes, room);
    std::vector<int64_t> used(bins.count);
    uint32_t next = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      RC_ASSERT(bins.of_item[i] <= next);  // numbered in the order of their first items
      next = std::max(next, bins.of_item[i] + 1);
      used[bins.of_item[i]] += sizes[i];
    }
    std::ranges::sort(used);
    RC_ASSERT(used == plain_best_fit(sizes, room));
  }));
}

/// Random chats: turns of a question and an answer, which may be empty. Token i of the text is i + 1.
struct Chats {
  std::vector<int32_t> ids, marks;
  std::vector<int64_t> chat;      ///< of each token, the first token of its chat
  std::vector<int64_t> question;  ///< of a learned token, the first token of its question

  static Chats arbitrary() {
    const auto length = rc::gen::inRange<int64_t>(0, 12);
    const auto turns = rc::gen::container<std::vector<std::pair<int64_t, int64_t>>>(rc::gen::pair(length, length));
    Chats made;
    for (const auto& chat : *rc::gen::container<std::vector<std::vector<std::pair<int64_t, int64_t>>>>(turns)) {
      const auto first = std::ssize(made.ids);
      int64_t question = first;
      for (const auto& [asked, answered] : chat) {
        const bool was_answered = std::ssize(made.ids) > first && (made.marks.back() & kIsAnswer) != 0;
        if (asked > 0 && was_answered) question = std::ssize(made.ids);
        for (int64_t t = 0; t < asked + answered; ++t) made.add(t < asked ? 0 : kIsAnswer, first, question);
      }
      if (std::ssize(made.ids) > first) made.marks.back() |= kEndsChat;
    }
    return made;
  }
  void add(int32_t mark, int64_t of_chat, int64_t of_question) {
    ids.push_back(static_cast<int32_t>(std::ssize(ids)) + 1);
    marks.push_back(mark);
    chat.push_back(of_chat);
    question.push_back(of_question);
  }
  bool is_learned(int64_t t) const {
    const auto i = static_cast<size_t>(t);
    return (marks[i] & kIsAnswer) != 0 && chat[i] != t;
  }
};

/// A row of a text of numbered tokens, for packed and other rows.
struct Row {
  explicit Row(int64_t context) : ids(context), labels(ids), documents(ids), positions(ids) {}
  std::vector<int64_t> ids, labels, documents, positions;
  RowBuffers buffers() { return {.ids = ids, .labels = labels, .documents = documents, .positions = positions}; }
  int64_t num_targets() const { return std::ssize(labels) - std::ranges::count(labels, kIgnoredLabel); }
};

/// Every token comes once an epoch or is counted as left out, every learned token is a target once, after its question
/// unless counted; parts of a row do not see each other or padding.
TEST(WholeDocuments, HaveEachTokenOnceAndAnswersAfterTheirQuestions) {
  const TemporaryFolder folder;
  EXPECT_TRUE(rc::check("nothing is lost", [&] {
    const Chats chats = Chats::arbitrary();
    const int64_t context = *rc::gen::inRange<int64_t>(1, 40);
    const bool packs = *rc::gen::arbitrary<bool>();
    const TokenFile tokens = file_of(folder, "tokens", chats.ids), marks = file_of(folder, "marks", chats.marks);
    const auto whole = std::make_shared<const WholeDocuments>(marks, context);
    const Documents documents(
        marks, [](int64_t mark) { return (mark & kEndsChat) != 0; }, true);
    std::map<int64_t, int64_t> learned;  // and how often
    for (int64_t t = 0; t < marks.size(); ++t) {
      if (chats.is_learned(t)) learned[t] = 0;
    }
    if (learned.empty()) {
      RC_ASSERT(whole->size() == 0);
      return;
    }
    const TrainSource source{
        .tokens = &tokens, .documents = packs ? &documents : nullptr, .marks = &marks, .whole = whole};
    const TrainWindows rows({source}, context, 5);
    std::vector<int64_t> seen(chats.ids.size());
    int64_t kept = 0, unasked = 0;
    for (int64_t k = 0; k < whole->size(); ++k) {
      Row row(context);
      rows.fill(k, row.buffers());
      RC_ASSERT(rows.num_targets(k, 1) == row.num_targets());
      RC_ASSERT(row.num_targets() > 0);
      int64_t piece = 0;  // its first token
      for (size_t i = 0; i < row.ids.size(); ++i) {
        const int64_t t = row.ids[i] - 1;  // -1: padding
        const bool goes_on = i > 0 && row.ids[i] == row.ids[i - 1] + (t < 0 ? 0 : 1) &&
                             (t < 0 || chats.chat[static_cast<size_t>(t)] == chats.chat[static_cast<size_t>(t - 1)]);
        if (packs) {
          RC_ASSERT(row.documents[i] == (i == 0 ? 0 : row.documents[i - 1] + (goes_on ? 0 : 1)));
          RC_ASSERT(row.positions[i] == (goes_on ? row.positions[i - 1] + 1 : 0));
        }
        if (!goes_on) piece = t;
        if (t < 0) {
          RC_ASSERT(row.labels[i] == kIgnoredLabel);
          continue;
        }
        ++kept;
        ++seen[static_cast<size_t>(t)];
        const bool is_same_chat = t + 1 < marks.size() && chats.chat[static_cast<size_t>(t + 1)] != t + 1;
        const bool is_target = is_same_chat && chats.is_learned(t + 1);
        RC_ASSERT(row.labels[i] == (is_target ? t + 2 : kIgnoredLabel));
        if (!is_target) continue;
        ++learned[t + 1];
        unasked += chats.question[static_cast<size_t>(t + 1)] < piece ? 1 : 0;
      }
    }
    const WholeDocuments::Counts& counts = whole->counts();
    RC_ASSERT(*std::ranges::max_element(seen) == 1);
    RC_ASSERT(kept == counts.tokens);
    RC_ASSERT(kept + counts.tokens_left_out == std::ssize(chats.ids));
    RC_ASSERT(std::ranges::all_of(learned, [](const auto& one) { return one.second == 1; }));
    RC_ASSERT(unasked == counts.without_question);
    RC_ASSERT(counts.cut > 0 || unasked == 0);
    RC_ASSERT(whole->num_targets() == std::ssize(learned));
  }));
}

TEST(WholeDocuments, WasteLittle) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> length(std::log(180.0), 1.0);
  std::vector<int64_t> lengths(5000);
  for (int64_t& one : lengths) one = std::max<int64_t>(2, std::llround(length(random)));
  const WholeDocuments whole(documents_of(folder, lengths, "text"), kEnd, 1024);
  EXPECT_LT(whole.waste(), 0.001);
  EXPECT_EQ(whole.counts().documents, 5000);
  EXPECT_EQ(whole.counts().cut, std::ranges::count_if(lengths, [](int64_t one) { return one > 1024; }));
  EXPECT_EQ(whole.counts().tokens + whole.counts().tokens_left_out,
            std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
}

TEST(WholeDocuments, AreCutOnlyIfTheyAreLonger) {
  const TemporaryFolder folder;
  const TokenFile tokens = documents_of(folder, {3, 8, 1, 9, 21, 5}, "text");
  const WholeDocuments whole(tokens, kEnd, 8);
  using Pieces = std::vector<TextPiece>;
  std::vector<Pieces> rows;
  for (int64_t i = 0; i < whole.size(); ++i) rows.push_back(whole.pieces(i));
  EXPECT_EQ(rows, (std::vector<Pieces>{{{0, 3, true}, {42, 5, true}},
                                       {{3, 8, true}},
                                       {{12, 8, false}},
                                       {{21, 8, false}},
                                       {{29, 8, false}},
                                       {{37, 5, true}}}));
  EXPECT_EQ(whole.counts().cut, 2);
  EXPECT_EQ(whole.counts().left_out, 2) << "a document of one token, and the last of nine, a target of the eighth";
  EXPECT_EQ(whole.num_targets(), 2 + 7 + 8 + 20 + 4);
  EXPECT_EQ(fill_note(whole, false),
            "6 documents in 6 sequences of 8, 6.2 % padding; 2 longer ones are cut; left out without a target: 2 "
            "pieces, 2 tokens");
}

TEST(WholeDocuments, AreVisitedOnceAnEpoch) {
  const TemporaryFolder folder;
  const TokenFile tokens = documents_of(folder, std::vector<int64_t>(60, 7), "text");
  const WholeDocuments whole(tokens, kEnd, 16);
  ASSERT_EQ(whole.size(), 30);
  std::vector<int64_t> first, second, other;
  for (int64_t k = 0; k < 30; ++k) {
    first.push_back(whole.sequence_of(k, 1));
    second.push_back(whole.sequence_of(30 + k, 1));
    other.push_back(whole.sequence_of(k, 2));
  }
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
  for (std::vector<int64_t>* order : {&first, &second, &other}) {
    std::ranges::sort(*order);
    for (int64_t k = 0; k < 30; ++k) EXPECT_EQ((*order)[static_cast<size_t>(k)], k);
  }
}

/// Each text of a mixture is visited as if it were alone, in its own order.
TEST(WholeDocuments, OfAMixtureAreThoseOfItsTexts) {
  const TemporaryFolder folder;
  const TokenFile a = documents_of(folder, std::vector<int64_t>(40, 6), "a");
  const TokenFile b = documents_of(folder, std::vector<int64_t>(20, 9), "b");
  const auto of_a = std::make_shared<const WholeDocuments>(a, kEnd, 20);
  const auto of_b = std::make_shared<const WholeDocuments>(b, kEnd, 20);
  const TrainWindows mixture({{.tokens = &a, .weight = 2, .whole = of_a}, {.tokens = &b, .whole = of_b}}, 20, 5);
  const TrainWindows alone({{.tokens = &a, .whole = of_a}}, 20, 5);
  int64_t targets = 0;
  std::set<std::vector<int64_t>> rows_of_b;
  for (int64_t k = 0; k < 30; ++k) {
    Row row(20), want(20);
    mixture.fill(k, row.buffers());
    const TrainWindows::Draw draw = mixture.draw(k);
    if (draw.source == 0) {
      alone.fill(draw.sample, want.buffers());
      EXPECT_EQ(row.ids, want.ids);
      EXPECT_EQ(row.labels, want.labels);
    } else {
      rows_of_b.insert(row.ids);
    }
    targets += row.num_targets();
  }
  EXPECT_EQ(rows_of_b.size(), 10U) << "an epoch of the other";
  EXPECT_EQ(mixture.num_targets(0, 30), targets);
  EXPECT_DOUBLE_EQ(mixture.epochs(1, 10).value(), 1);
  EXPECT_EQ(mixture.whole_documents(1), of_b.get());
}

TEST(WholeDocuments, AreEvaluatedInTheOrderOfTheText) {
  const TemporaryFolder folder;
  const TokenFile tokens = documents_of(folder, {2, 4, 9, 8}, "text");
  for (const bool restarts : {true, false}) {
    const Documents documents(tokens, kEnd, restarts);
    const auto whole = std::make_shared<const WholeDocuments>(tokens, kEnd, 9);
    const ValidationWindows rows({&tokens, &documents}, whole);
    ASSERT_EQ(rows.size(), 3);
    Row all(4 * 9);  // and a row of padding
    rows.fill(0, all.buffers());
    const auto i = kIgnoredLabel;
    EXPECT_EQ(all.ids, (std::vector<int64_t>{1,  0,  3,  4,  5,  0,  0,  0, 0, 7, 8, 9, 10, 11, 12, 13, 14, 0,
                                             16, 17, 18, 19, 20, 21, 22, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0}));
    EXPECT_EQ(all.labels, (std::vector<int64_t>{0,  i,  4,  5,  0,  i,  i, i, i, 8, 9, 10, 11, 12, 13, 14, 0, i,
                                                17, 18, 19, 20, 21, 22, 0, i, i, i, i, i,  i,  i,  i,  i,  i, i}));
    EXPECT_EQ(all.documents, (std::vector<int64_t>{0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                   0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
    for (size_t t = 0; t < all.positions.size(); ++t) {
      const bool begins = t % 9 == 0 || all.documents[t] != all.documents[t - 1];
      const auto along = static_cast<int64_t>(t % 9);
      EXPECT_EQ(all.positions[t], !restarts ? along : begins ? 0 : all.positions[t - 1] + 1);
    }
    EXPECT_EQ(rows.num_targets(), all.num_targets());
  }
}

TEST(WholeDocuments, RefuseWhatHasNoTarget) {
  const TemporaryFolder folder;
  const TokenFile tokens = documents_of(folder, {1, 1, 1}, "text");
  const auto whole = std::make_shared<const WholeDocuments>(tokens, kEnd, 8);
  const TrainSource source{.tokens = &tokens, .name = "a.txt", .whole = whole};
  EXPECT_THAT(message_of<DataError>([&] { TrainWindows({source}, 8, 1); }),
              HasSubstr("the training text a.txt: has no target in any of its 3 documents"));
  EXPECT_THAT(message_of<DataError>([&] { ValidationWindows({&tokens}, whole); }),
              AllOf(HasSubstr("validation text"), HasSubstr("no target in any of its 3 documents")));
  EXPECT_THROW(TrainWindows({source}, 9, 1), InternalError);
  EXPECT_THROW(WholeDocuments(tokens, kEnd, 0), ShapeError);
}

}  // namespace
}  // namespace caravan::whole_documents_test
