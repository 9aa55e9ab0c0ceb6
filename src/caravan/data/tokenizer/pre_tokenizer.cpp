#include "caravan/data/tokenizer/pre_tokenizer.h"

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

}  // namespace

PreTokenizer PreTokenizer::gpt2() {
  std::vector<PreTokenizerStage> stages(1);
  stages[0].pattern.emplace(kGpt2Pattern, "the pattern of GPT-2");
  return PreTokenizer(std::move(stages));
}

void PreTokenizer::split(std::string_view text, Scratch& scratch, WordSink& sink) const {
  while (scratch.searches.size() < stages_.size()) scratch.searches.push_back(std::make_unique<RegexScratch>());
  scratch.prefixed.resize(stages_.size());
  if (!text.empty()) run_stage(0, text, scratch, sink);
}

void PreTokenizer::run_stage(size_t index, std::string_view text, Scratch& scratch, WordSink& sink) const {
  if (index == stages_.size()) {
    sink.word(text);
    return;
  }
  const PreTokenizerStage& stage = stages_[index];
  if (stage.add_prefix_space && text.front() != ' ') {
    scratch.prefixed[index].assign(" ").append(text);
    text = scratch.prefixed[index];
  }
  if (!stage.pattern) {
    run_stage(index + 1, text, scratch, sink);
    return;
  }
  PieceJoiner joiner(stage.behavior, text, [&](std::string_view piece) { run_stage(index + 1, piece, scratch, sink); });
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
