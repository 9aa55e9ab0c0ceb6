#include "caravan/data/chat/chat_tokens.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

constexpr int64_t kNumMarks = 4;

struct MarkedChat {
  std::vector<int32_t> ids;
  std::vector<int32_t> marks;
  int64_t answer_bytes = 0;
};

/// The bytes [begin, end) of answers, in the order of the text.
using Answers = std::vector<std::pair<size_t, size_t>>;

std::string spelling_of(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

/// The answers of a chat in `spelled`, the text of its tokens, which is the chat's text after normalization.
///
/// The text is cut where answers begin and end, and each part is normalized separately. The result is its part of the
/// whole unless the normalizer composes across the cut: an answer that begins with a combining accent. Then the cut
/// moves by a character, because the composed one begins in the previous text. Throws DataError if no such cut is
/// found.
class SpelledAnswers {
 public:
  SpelledAnswers(const RenderedChat& chat, const std::string& spelled, const Tokenizer& tokenizer)
      : chat_(chat), spelled_(spelled), tokenizer_(tokenizer) {}

  Answers find() {
    Answers answers;
    for (const auto& [begin, end] : chat_.answers) {
      advance_to(begin);
      const size_t first = in_spelled_;
      advance_to(end);
      answers.emplace_back(first, in_spelled_);
    }
    return answers;
  }

 private:
  void advance_to(size_t cut) {
    constexpr int kLongestCluster = 64;  // characters that compose with the one before the cut
    for (int moved = 0; in_text_ < cut && moved <= kLongestCluster; ++moved) {
      const std::string_view part = std::string_view(chat_.text).substr(in_text_, cut - in_text_);
      std::string piece = spelling_of(tokenizer_.encode(part), tokenizer_);
      // Tokenizers of SentencePiece begin a text with a space.
      if (!follows(piece) && piece.starts_with(' ') && !part.starts_with(' ')) piece.erase(0, 1);
      if (follows(piece)) {
        in_text_ = cut;
        in_spelled_ += piece.size();
        return;
      }
      if (cut == chat_.text.size()) break;
      do ++cut;
      while (cut < chat_.text.size() && is_utf8_tail(chat_.text[cut]));
    }
    if (in_text_ >= cut) return;
    size_t shown = std::min<size_t>(60, chat_.text.size());
    while (shown > 0 && shown < chat_.text.size() && is_utf8_tail(chat_.text[shown])) --shown;
    throw DataError({"data", "data.tokenizer",
                     "changes the text of a chat, so that the assistant's tokens cannot be determined",
                     fmt::format("the chat that begins with \"{}\"", chat_.text.substr(0, shown)),
                     "use a tokenizer whose normalizer is NFC, or one without"});
  }

  bool follows(const std::string& piece) const { return spelled_.compare(in_spelled_, piece.size(), piece) == 0; }

  const RenderedChat& chat_;
  const std::string& spelled_;
  const Tokenizer& tokenizer_;
  size_t in_text_ = 0;  ///< the previous cut
  size_t in_spelled_ = 0;
};

MarkedChat marked(const RenderedChat& chat, const Tokenizer& tokenizer) {
  MarkedChat result{.ids = tokenizer.encode(chat.text), .marks = {}};
  const std::string spelled = spelling_of(result.ids, tokenizer);
  const Answers answers = spelled == chat.text ? chat.answers : SpelledAnswers(chat, spelled, tokenizer).find();
  size_t at = 0;
  size_t answer = 0;  // the first answer that does not end before
  for (const int32_t id : result.ids) {
    while (answer < answers.size() && answers[answer].second <= at) ++answer;
    const bool is_answer = answer < answers.size() && answers[answer].first <= at;
    result.marks.push_back(is_answer ? kIsAnswer : 0);
    at += tokenizer.token_bytes(id).size();
  }
  if (!result.marks.empty()) result.marks.back() |= kEndsChat;
  for (const auto& [begin, end] : answers) result.answer_bytes += static_cast<int64_t>(end - begin);
  return result;
}

}  // namespace

ChatTokens open_or_build_chats(const std::filesystem::path& cache_dir, std::span<const std::string_view> chats,
                               const Tokenizer& tokenizer, DataObserver& observer) {
  SecondPass hashing(observer);
  ContentHasher hasher;
  hasher.update(kMarking);
  hasher.update("tokens");
  hasher.update(tokenizer.hash().high);
  hasher.update(tokenizer.hash().low);
  for (const std::string_view chat : chats) {
    hasher.update(static_cast<uint64_t>(chat.size()));
    in_pieces(chat, hashing, [&](std::string_view piece) { hasher.update(piece); });
  }
  const ContentHash of_tokens = hasher.value();
  const auto build = [&](TokenFileWriter& ids, TokenFileWriter& of_ids) {
    observer.begin("tokenizing", num_bytes(chats));
    int64_t bytes = 0;
    for (const std::string_view json : chats) {
      const MarkedChat chat = marked(RenderedChat::from_json(json), tokenizer);
      ids.append(chat.ids);
      of_ids.append(chat.marks);
      bytes += chat.answer_bytes;
      observer.advance(static_cast<int64_t>(json.size()));
    }
    return bytes;
  };
  auto [tokens, marks] = open_or_build_both(
      cache_dir, {of_tokens, tokenizer.vocab_size()}, {content_of_marks(of_tokens), kNumMarks}, build,
      [](const TokenFile& ids, const TokenFile& of_ids) { return ids.size() == of_ids.size(); }, observer);
  return {std::move(tokens), std::move(marks)};
}

ContentHash content_of_marks(const ContentHash& tokens) {
  ContentHasher hasher;
  hasher.update("marks");
  hasher.update(tokens.high);
  hasher.update(tokens.low);
  return hasher.value();
}

AnswerCounts::AnswerCounts(const TokenFile& marks, bool packed) : marks_(&marks), packed_(packed) {
  before_.push_back(0);
  for (int64_t first = 0; first < marks.size(); first += kBlock) {
    before_.push_back(before_.back() + scan(first, std::min(kBlock, marks.size() - first)));
  }
}

/// Counts the targets in [first, first + count), at most a block.
int64_t AnswerCounts::scan(int64_t first, int64_t count) const {
  std::array<int64_t, kBlock + 1> marks{};  // the mark of the previous token comes first
  const int64_t before = std::min<int64_t>(first, 1);
  marks_->read(first - before,
               std::span(marks).subspan(static_cast<size_t>(1 - before), static_cast<size_t>(count + before)));
  int64_t targets = 0;
  for (int64_t i = 1; i <= count; ++i) {
    const bool follows_end = packed_ && (marks[static_cast<size_t>(i - 1)] & kEndsChat) != 0;
    targets += (marks[static_cast<size_t>(i)] & kIsAnswer) != 0 && !follows_end ? 1 : 0;
  }
  return targets;
}

int64_t AnswerCounts::before(int64_t token) const {
  const int64_t block = token / kBlock;
  return before_[static_cast<size_t>(block)] + scan(block * kBlock, token % kBlock);
}

int64_t AnswerCounts::num_targets(int64_t first, int64_t count) const {
  return before(first + count + 1) - before(first + 1);
}

void mark_answers(const TokenFile& marks, int64_t first, std::span<int64_t> labels) {
  std::vector<int64_t> of_labels(labels.size());
  marks.read(first + 1, of_labels);
  for (size_t t = 0; t < labels.size(); ++t) {
    if ((of_labels[t] & kIsAnswer) == 0) labels[t] = kIgnoredLabel;
  }
}

}  // namespace caravan
