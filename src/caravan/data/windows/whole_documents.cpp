#include "caravan/data/windows/whole_documents.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/windows/best_fit.h"

namespace caravan {
namespace {

constexpr uint32_t kEndBit = uint32_t{1} << 31;

template <class Use>
void for_each_number(const TokenFile& file, const Use& use) {
  constexpr int64_t kAtOnce = int64_t{1} << 16;
  std::vector<int64_t> numbers(static_cast<size_t>(std::min(kAtOnce, file.size())));
  for (int64_t first = 0; first < file.size(); first += kAtOnce) {
    const auto part = std::span(numbers).first(static_cast<size_t>(std::min(kAtOnce, file.size() - first)));
    file.read(first, part);
    for (const int64_t number : part) use(number);
  }
}

}  // namespace

/// Cuts the documents of a text, which is given token by token, into pieces.
class WholeDocuments::Maker {
 public:
  Maker(int64_t context, bool are_chats) : context_(context), are_chats_(are_chats) {
    if (context >= 1 && context < int64_t{kEndBit}) return;
    throw ShapeError({.op = "data",
                      .subject = "context",
                      .fact = fmt::format("is {} tokens", context),
                      .action = fmt::format("use 1 to {}", kEndBit - 1)});
  }

  std::vector<int64_t> firsts{};
  std::vector<uint32_t> lengths{};
  std::vector<uint32_t> targets{};
  std::vector<bool> ends{};
  Counts counts{};

  /// The next token. `is_learned`: it is a target unless its document begins with it.
  void add(bool is_learned, bool is_end) {
    const bool begins = at_ == document_;
    if (begins || (!is_learned && was_learned_)) question_ = at_;
    if (!begins && is_learned) {
      ++num_targets_;  // the label of the token before it, which may be the last of a piece
      if (are_chats_ && question_ < piece_) ++counts.without_question;
    }
    if (!begins && (at_ - document_) % context_ == 0) end_piece(false);
    was_learned_ = is_learned;
    ++at_;
    if (is_end) end_document();
  }
  void finish() {
    if (at_ > document_) end_document();
  }

 private:
  void end_piece(bool is_end) {
    const int64_t length = at_ - piece_;
    if (num_targets_ == 0) {
      ++counts.left_out;
      counts.tokens_left_out += length;
    } else {
      firsts.push_back(piece_);
      lengths.push_back(static_cast<uint32_t>(length));
      targets.push_back(static_cast<uint32_t>(num_targets_));
      ends.push_back(is_end);
      counts.tokens += length;
    }
    num_targets_ = 0;
    piece_ = at_;
  }
  void end_document() {
    ++counts.documents;
    counts.cut += piece_ > document_ ? 1 : 0;
    end_piece(true);
    document_ = at_;
  }

  int64_t context_;
  bool are_chats_;
  int64_t at_ = 0;        ///< the next token
  int64_t document_ = 0;  ///< the first token of the document
  int64_t piece_ = 0;     ///< the first token of the piece
  int64_t question_ = 0;  ///< the first token of what the last learned ones answer
  int64_t num_targets_ = 0;
  bool was_learned_ = false;
};

WholeDocuments::WholeDocuments(const TokenFile& tokens, int64_t end_of_text, int64_t context) : context_(context) {
  Maker maker(context, false);
  for_each_number(tokens, [&](int64_t id) { maker.add(true, id == end_of_text); });
  maker.finish();
  pack(std::move(maker));
}

WholeDocuments::WholeDocuments(const TokenFile& marks, int64_t context) : context_(context) {
  Maker maker(context, true);
  for_each_number(marks, [&](int64_t mark) { maker.add((mark & kIsAnswer) != 0, (mark & kEndsChat) != 0); });
  maker.finish();
  pack(std::move(maker));
}

void WholeDocuments::pack(Maker made) {
  const size_t count = made.firsts.size();
  if (count >= std::numeric_limits<uint32_t>::max()) {
    throw DataError({.op = "data",
                     .subject = "data.fill",
                     .fact = fmt::format("best_fit puts {} documents into sequences, more than 2^32 - 2", count),
                     .action = "use data.fill = \"stream\", or data.streaming = true"});
  }
  counts_ = made.counts;
  const Bins bins = best_fit_decreasing(made.lengths, static_cast<uint32_t>(context_));
  begins_.resize(size_t{bins.count} + 1);
  targets_.resize(bins.count);
  for (size_t i = 0; i < count; ++i) {
    ++begins_[bins.of_item[i] + 1];
    targets_[bins.of_item[i]] += made.targets[i];
  }
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  firsts_.resize(count);
  lengths_.resize(count);
  std::vector<uint32_t> next(begins_.begin(), begins_.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t place = next[bins.of_item[i]]++;
    firsts_[place] = made.firsts[i];
    lengths_[place] = made.lengths[i] | (made.ends[i] ? kEndBit : 0);
  }
}

std::vector<TextPiece> WholeDocuments::pieces(int64_t sequence) const {
  std::vector<TextPiece> pieces;
  for (uint32_t i = begins_[static_cast<size_t>(sequence)]; i < begins_[static_cast<size_t>(sequence) + 1]; ++i) {
    pieces.push_back({.first = firsts_[i], .count = lengths_[i] & ~kEndBit, .is_end = (lengths_[i] & kEndBit) != 0});
  }
  return pieces;
}

int64_t WholeDocuments::num_targets() const { return std::accumulate(targets_.begin(), targets_.end(), int64_t{0}); }

int64_t WholeDocuments::sequence_of(int64_t sample, uint64_t seed) const {
  const RandomPermutation order(seed, "data.order", sample / size(), static_cast<uint64_t>(size()));
  return static_cast<int64_t>(order(static_cast<uint64_t>(sample % size())));
}

double WholeDocuments::waste() const noexcept {
  const auto room = static_cast<double>(size() * context_);
  return room == 0 ? 0 : 1 - static_cast<double>(counts_.tokens) / room;
}

std::string fill_note(const WholeDocuments& whole, bool are_chats) {
  const WholeDocuments::Counts& counts = whole.counts();
  const char* what = are_chats ? "chats" : "documents";
  std::string text = fmt::format("{} {} in {} sequences of {}, {:.1f} % padding", counts.documents, what, whole.size(),
                                 whole.context(), 100 * whole.waste());
  if (counts.cut > 0) text += fmt::format("; {} longer {} cut", counts.cut, counts.cut == 1 ? "one is" : "ones are");
  if (counts.without_question > 0) {
    text += fmt::format(", {} learned tokens without all of their question", counts.without_question);
  }
  if (counts.left_out > 0) {
    text += fmt::format("; left out without a target: {} {}, {} tokens", counts.left_out,
                        counts.left_out == 1 ? "piece" : "pieces", counts.tokens_left_out);
  }
  return text;
}

}  // namespace caravan
