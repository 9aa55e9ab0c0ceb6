#include "caravan/data/tokenizer/pre_tokenizer.h"

#include "caravan/data/tokenizer/byte_alphabet.h"

namespace caravan {
namespace {

/// Combines the matches and the gaps between them into pieces, according to a SplitBehavior.
template <typename Emit>
class PieceJoiner {
 public:
  PieceJoiner(SplitBehavior behavior, std::string_view text, Emit emit)
      : behavior_(behavior), text_(text), emit_(std::move(emit)) {}

  void add(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::isolated: piece(begin, end); break;
      case SplitBehavior::removed:
        if (!is_match) piece(begin, end);
        break;
      case SplitBehavior::contiguous: hold(begin, end, holds_ && is_match == held_is_match_, is_match); break;
      case SplitBehavior::merged_with_previous:
        hold(begin, end, holds_ && is_match && !held_is_match_, is_match);
        break;
      case SplitBehavior::merged_with_next: hold(begin, end, holds_ && !is_match && held_is_match_, is_match); break;
    }
  }

  void finish() {
    if (holds_) piece(held_begin_, held_end_);
    holds_ = false;
  }

 private:
  void piece(size_t begin, size_t end) {
    if (begin < end) emit_(text_.substr(begin, end - begin));
  }

  void hold(size_t begin, size_t end, bool joins, bool is_match) {
    if (!joins) {
      finish();
      held_begin_ = begin;
    }
    held_end_ = end;
    holds_ = true;
    held_is_match_ = is_match;
  }

  SplitBehavior behavior_;
  std::string_view text_;
  Emit emit_;
  bool holds_ = false;
  bool held_is_match_ = false;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
};

/// The text with its spaces replaced and the mark in front, as the stage wants it: `input`, or a view of `out`.
NormalizedText changed(const PreTokenizerStage& stage, const NormalizedText& input, std::string& out) {
  const auto starts_with_mark = [&](std::string_view text) {
    return text.starts_with(stage.mark) || (stage.replaces_spaces && text.front() == ' ');
  };
  const bool prepends =
      stage.scheme == PrependScheme::always || (stage.scheme == PrependScheme::first && input.head > 0);
  const bool is_new = prepends && !starts_with_mark(input.text);
  if (!is_new && !stage.replaces_spaces) return input;
  out = is_new ? stage.mark : "";
  size_t head = is_new && input.head > 0 ? out.size() : 0;
  for (size_t at = 0; at < input.text.size(); ++at) {
    if (stage.replaces_spaces && input.text[at] == ' ') {
      out += stage.mark;
    } else {
      out += input.text[at];
    }
    if (at < input.head) head = out.size();
  }
  return {out, head};
}

}  // namespace

PreTokenizer PreTokenizer::gpt2() {
  std::vector<PreTokenizerStage> stages(1);
  stages[0].pattern.emplace(kGpt2Pattern, "the pattern of GPT-2");
  return PreTokenizer(std::move(stages));
}

void PreTokenizer::leave_bytes() {
  PreTokenizerStage& last = stages_.back();
  last.maps_bytes = false;
  if (!last.pattern && last.scheme == PrependScheme::never) stages_.pop_back();  // nothing is left of it
}

void PreTokenizer::split(NormalizedText text, Scratch& scratch, WordSink& sink) const {
  while (scratch.searches.size() < stages_.size()) scratch.searches.push_back(std::make_unique<RegexScratch>());
  scratch.changed.resize(stages_.size());
  scratch.mapped.resize(stages_.size());
  if (!text.text.empty()) run_stage(0, text, scratch, sink);
}

void PreTokenizer::run_stage(size_t index, NormalizedText input, Scratch& scratch, WordSink& sink) const {
  if (index == stages_.size()) {
    sink.word(input.text);
    return;
  }
  const PreTokenizerStage& stage = stages_[index];
  if (stage.replaces_spaces || stage.scheme != PrependScheme::never)
    input = changed(stage, input, scratch.changed[index]);
  const std::string_view text = input.text;
  const bool is_last = index + 1 == stages_.size() && !stage.maps_bytes;
  const auto pass_on = [&](std::string_view piece) {
    if (is_last) {
      sink.word(piece);
      return;
    }
    const auto begin = static_cast<size_t>(piece.data() - text.data());
    if (stage.maps_bytes) {
      piece = scratch.mapped[index] = ByteAlphabet::instance().encode(piece);
    }
    run_stage(index + 1, {piece, input.head > begin ? input.head - begin : 0}, scratch, sink);
  };
  if (!stage.pattern) {
    pass_on(text);
    return;
  }
  PieceJoiner joiner(stage.behavior, text, pass_on);
  RegexSearch search(*stage.pattern, *scratch.searches[index], text);
  size_t end = 0;
  while (const auto match = search.next()) {
    if (end < match->begin) joiner.add(end, match->begin, stage.is_inverted);
    joiner.add(match->begin, match->end, !stage.is_inverted);
    end = match->end;
  }
  if (end < text.size()) joiner.add(end, text.size(), stage.is_inverted);
  joiner.finish();
}

}  // namespace caravan
