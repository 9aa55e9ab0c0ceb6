#include "caravan/data/windows/streamed_windows.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/windows/sampler.h"

namespace caravan {

StreamedWindows::StreamedWindows(TokenStreams& streams, size_t text, int64_t context, uint64_t seed,
                                 std::optional<PackRule> packs)
    : streams_(streams), text_(text), context_(context), seed_(seed), packs_(packs) {
  windows_of(context + 1);  // checks it
  if (!has_whole_documents() || streams_.fill()->context == context) return;
  throw InternalError({"data", "a streamed text",
                       fmt::format("has sequences of {} tokens, not {}", streams_.fill()->context, context), "", ""});
}

/// 0 for a shard that is too short for a window.
int64_t StreamedWindows::windows_of(int64_t num_tokens) const {
  if (context_ >= 1 && num_tokens <= context_) return 0;
  return Sampler(num_tokens, context_, seed_).windows_per_epoch();
}

int64_t StreamedWindows::rows_of(const ShardRecord& record) const {
  return has_whole_documents() ? record.num_sequences.value() : windows_of(record.num_tokens);
}

/// Shards of equal length are visited in different orders.
uint64_t StreamedWindows::seed_of(int64_t shard) const {
  constexpr uint64_t kOdd = 0xD1B54A32D192ED03;
  return seed_ + kOdd * static_cast<uint64_t>(shard);
}

void StreamedWindows::learn_next_shard(DataObserver& observer) {
  const auto next = static_cast<int64_t>(ends_.size());
  const ShardRecord record = streams_.record(text_, next, observer);
  if (next == 0 && record.chats) check_answers("the first part of " + streams_.name(text_), *record.chats);
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + rows_of(record));
  is_whole_ = record.is_last;
  if (!is_whole_ || ends_.back() > 0) return;
  const char* nothing =
      streams_.are_chats() ? "has no chat with a token to learn" : "has no document of two tokens or more";
  throw DataError({"data", "the training text " + streams_.name(text_),
                   has_whole_documents() ? nothing
                                         : fmt::format("has no shard of {} tokens, which a window of context {} needs",
                                                       context_ + 1, context_),
                   "", has_whole_documents() ? "give more text" : "give more text, or lower model.context"});
}

StreamedWindows::Place StreamedWindows::place_of(int64_t sample, DataObserver& observer) {
  while (!is_whole_ && (ends_.empty() || sample >= ends_.back())) learn_next_shard(observer);
  const int64_t epoch = sample / ends_.back();  // 0 while the last shard is unknown
  const int64_t in_epoch = sample % ends_.back();
  const auto found = std::ranges::upper_bound(ends_, in_epoch);
  const int64_t begin = found == ends_.begin() ? 0 : *std::prev(found);
  return {
      .shard = found - ends_.begin(), .index = epoch * (*found - begin) + in_epoch - begin, .left = *found - in_epoch};
}

std::shared_ptr<const StreamedWindows::Shard> StreamedWindows::open(int64_t shard, DataObserver& observer) {
  ShardTokens opened = streams_.open(text_, shard, observer);
  const auto made = std::make_shared<Shard>(Shard{shard, std::move(opened.tokens), std::move(opened.marks)});
  const auto& fill = streams_.fill();
  if (made->marks) {
    if (packs_) made->documents.emplace(*made->marks, ends_chat, packs_->restarts);
    if (fill) made->whole.emplace(*made->marks, fill->context);
    if (!fill) made->answers.emplace(*made->marks, packs_.has_value());
  } else {
    if (packs_) made->documents.emplace(made->tokens, packs_->end_of_text, packs_->restarts);
    if (fill) made->whole.emplace(made->tokens, fill->end_of_text, fill->context);
  }
  if (shard > 0) return made;
  first_notes_.clear();
  if (made->whole) first_notes_.push_back(fill_note(*made->whole, made->marks.has_value()));
  if (const auto chats = streams_.record(text_, 0, observer).chats) {
    for (std::string& note : notes_of(*chats)) first_notes_.push_back(std::move(note));
  }
  return made;
}

std::vector<std::string> StreamedWindows::first_notes() const {
  const std::lock_guard lock(mutex_);
  return first_notes_;
}

/// Null if the shard is not open.
std::shared_ptr<const StreamedWindows::Shard> StreamedWindows::find(int64_t shard) {
  if (const auto found = prepared_.find(shard); found != prepared_.end()) return found->second;
  const auto found = std::ranges::find(open_, shard, [](const auto& one) { return one->index; });
  if (found == open_.end()) return nullptr;
  open_.splice(open_.begin(), open_, found);
  return open_.front();
}

StreamedWindows::Row StreamedWindows::row(int64_t sample) {
  const std::lock_guard lock(mutex_);
  const Place place = place_of(sample, DataObserver::none());
  std::shared_ptr<const Shard> shard = find(place.shard);
  if (shard == nullptr) {
    if (open_.size() == kMostOpen) open_.pop_back();
    shard = open_.emplace_front(open(place.shard, DataObserver::none()));
  }
  if (shard->whole) {
    const int64_t sequence = shard->whole->sequence_of(place.index, seed_of(place.shard));
    std::vector<TextPiece> pieces = shard->whole->pieces(sequence);
    const int64_t num_targets = shard->whole->num_targets(sequence);
    return {.shard = std::move(shard), .pieces = std::move(pieces), .num_targets = num_targets};
  }
  const int64_t offset = Sampler(shard->tokens.size(), context_, seed_of(place.shard)).offset(place.index);
  return {.shard = std::move(shard), .pieces = {{.first = offset, .count = context_}}};
}

std::vector<StreamedWindows::Seen> StreamedWindows::prepare(int64_t first, int64_t end, DataObserver& observer) {
  const std::lock_guard lock(mutex_);
  std::vector<Seen> seen;
  std::map<int64_t, std::shared_ptr<const Shard>> prepared;
  for (int64_t sample = first; sample < end;) {
    const Place place = place_of(sample, observer);
    std::shared_ptr<const Shard>& shard = prepared[place.shard];
    if (shard == nullptr) shard = find(place.shard);
    if (shard == nullptr) shard = open(place.shard, observer);
    seen.push_back({place.shard, shard->tokens.info().content});
    sample += place.left;
    ready_until_ = std::max(ready_until_, sample);
  }
  prepared_ = std::move(prepared);
  open_.clear();
  ready_until_ = std::max(ready_until_, end);
  return seen;
}

bool StreamedWindows::is_ready(int64_t end) const {
  const std::lock_guard lock(mutex_);
  return end <= ready_until_;
}

std::optional<int64_t> StreamedWindows::rows_per_epoch() const {
  const std::lock_guard lock(mutex_);
  return is_whole_ ? std::optional(ends_.back()) : std::nullopt;
}

int64_t StreamedWindows::num_open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(prepared_.size() + open_.size());
}

}  // namespace caravan
