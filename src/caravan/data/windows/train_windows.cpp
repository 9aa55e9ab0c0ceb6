#include "caravan/data/windows/train_windows.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

std::vector<WeighedSource> weights_of(const std::vector<TrainSource>& sources) {
  std::vector<WeighedSource> weights;
  for (const TrainSource& source : sources) weights.push_back({source.weight, source.name});
  return weights;
}

void check_sequences(const TrainSource& source, int64_t context) {
  const WholeDocuments& whole = *source.whole;
  if (whole.context() != context) {
    throw InternalError(
        {"data", "sequences", fmt::format("have {} tokens, and rows {}", whole.context(), context), "", ""});
  }
  if (whole.size() > 0) return;
  throw DataError({.op = "data",
                   .subject = source.name.empty() ? "the training text" : "the training text " + source.name,
                   .fact = fmt::format("has no target in any of its {} documents", whole.counts().documents),
                   .action = "give more text"});
}

}  // namespace

TrainWindows::TrainWindows(const std::vector<TrainSource>& sources, int64_t context, uint64_t seed)
    : sources_(sources), context_(context), turns_(weights_of(sources)) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TrainSource& source = sources_[i];
    Order& order = orders_.emplace_back(Order{.seed = seed_of_source(seed, i)});
    if (source.streams != nullptr) {
      order.streamed = std::make_shared<StreamedWindows>(*source.streams, i, context, order.seed, source.packs);
    } else if (source.whole != nullptr) {
      check_sequences(source, context);
    } else {
      order.sampler.emplace(source.tokens->size(), context, order.seed, source.name);
      if (source.marks == nullptr) continue;
      order.answers = std::make_shared<const AnswerCounts>(*source.marks, source.documents != nullptr);
    }
  }
}

std::optional<double> TrainWindows::epochs(size_t source, int64_t samples) const {
  const Order& order = orders_[source];
  const WholeDocuments* whole = whole_documents(source);
  const std::optional<int64_t> rows = order.streamed     ? order.streamed->rows_per_epoch()
                                      : whole != nullptr ? whole->size()
                                                         : order.sampler->windows_per_epoch();
  if (!rows) return std::nullopt;
  return static_cast<double>(samples) / static_cast<double>(*rows);
}

std::vector<std::string> TrainWindows::notes() const {
  std::vector<std::string> notes;
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (!orders_[i].streamed) continue;
    for (const std::string& note : orders_[i].streamed->first_notes()) {
      notes.push_back(fmt::format("{}, its first part: {}", sources_[i].name, note));
    }
  }
  return notes;
}

TrainWindows::Place TrainWindows::place_of(int64_t sample) const {
  const Draw drawn = draw(sample);
  const Order& order = orders_[drawn.source];
  const TrainSource& source = sources_[drawn.source];
  if (order.streamed) {
    StreamedWindows::Row row = order.streamed->row(drawn.sample);
    const StreamedWindows::Shard& shard = *row.shard;
    return {.shard = std::move(row.shard),
            .text = {.tokens = &shard.tokens,
                     .documents = shard.documents ? &*shard.documents : nullptr,
                     .marks = shard.marks ? &*shard.marks : nullptr},
            .pieces = std::move(row.pieces),
            .num_targets = row.num_targets,
            .answers = shard.answers ? &*shard.answers : nullptr};
  }
  Place place{.shard = nullptr,
              .text = {.tokens = source.tokens, .documents = source.documents, .marks = source.marks},
              .pieces = {},
              .num_targets = {},
              .answers = order.answers.get()};
  if (source.whole != nullptr) {
    const int64_t sequence = source.whole->sequence_of(drawn.sample, order.seed);
    place.pieces = source.whole->pieces(sequence);
    place.num_targets = source.whole->num_targets(sequence);
  } else {
    place.pieces = {{.first = order.sampler->offset(drawn.sample), .count = context_}};
  }
  return place;
}

std::vector<TrainWindows::SeenShard> TrainWindows::prepare(int64_t first, int64_t end, DataObserver& observer) const {
  std::vector<SeenShard> seen;
  const std::vector<int64_t> before = drawn(first);
  const std::vector<int64_t> after = drawn(end);
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (!orders_[i].streamed) continue;
    for (const StreamedWindows::Seen& one : orders_[i].streamed->prepare(before[i], after[i], observer)) {
      seen.push_back({fmt::format("shard {} of training text {}", one.shard, i), one.content});
    }
  }
  return seen;
}

bool TrainWindows::is_ready(int64_t end) const {
  const std::vector<int64_t> after = drawn(end);
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (orders_[i].streamed && !orders_[i].streamed->is_ready(after[i])) return false;
  }
  return true;
}

int64_t TrainWindows::num_targets(const Place& place) const {
  if (place.num_targets) return *place.num_targets;
  const int64_t first = place.pieces.front().first;
  if (place.answers != nullptr) return place.answers->num_targets(first, context_);
  return context_ - (place.text.documents != nullptr ? place.text.documents->num_ends(first, context_) : 0);
}

int64_t TrainWindows::num_targets(int64_t first, int64_t rows) const {
  const TrainSource& source = sources_.front();
  const bool is_whole = source.whole != nullptr || (source.streams != nullptr && source.streams->fill());
  const bool are_chats = source.marks != nullptr || (source.streams != nullptr && source.streams->are_chats());
  if (!is_whole && !are_chats && !has_documents()) return rows * context_;
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) count += num_targets(place_of(first + row));
  return count;
}

void TrainWindows::read(int64_t sample, std::span<int64_t> window) const {
  const Place place = place_of(sample);
  place.text.tokens->read(place.pieces.front().first, window);
}

RowShape TrainWindows::shape() const {
  return {.length = context_, .has_documents = has_documents(), .has_positions = has_documents()};
}

void TrainWindows::fill(int64_t first, const RowBuffers& rows) const {
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    const Place place = place_of(first + row);
    fill_row(place.text, place.pieces, one);
  });
}

}  // namespace caravan
