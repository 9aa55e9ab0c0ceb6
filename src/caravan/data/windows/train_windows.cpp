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

}  // namespace

TrainWindows::TrainWindows(const std::vector<TrainSource>& sources, int64_t context, uint64_t seed)
    : sources_(sources), context_(context), turns_(weights_of(sources)) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TrainSource& source = sources_[i];
    const uint64_t own = seed_of_source(seed, i);
    if (source.streams == nullptr) {
      orders_.push_back({.sampler = Sampler(source.tokens->size(), context, own, source.name)});
      if (source.marks == nullptr) continue;
      orders_.back().answers = std::make_shared<const AnswerCounts>(*source.marks, source.documents != nullptr);
    } else {
      orders_.push_back(
          {.streamed = std::make_shared<StreamedWindows>(*source.streams, i, context, own, source.packs)});
    }
  }
}

std::optional<double> TrainWindows::epochs(size_t source, int64_t samples) const {
  const Order& order = orders_[source];
  const std::optional<int64_t> windows =
      order.sampler ? order.sampler->windows_per_epoch() : order.streamed->windows_per_epoch();
  if (!windows) return std::nullopt;
  return static_cast<double>(samples) / static_cast<double>(*windows);
}

TrainWindows::Place TrainWindows::place_of(int64_t sample) const {
  const Draw drawn = draw(sample);
  const Order& order = orders_[drawn.source];
  const TrainSource& source = sources_[drawn.source];
  if (order.sampler) {
    return {nullptr,      *source.tokens,      source.documents,
            source.marks, order.answers.get(), order.sampler->offset(drawn.sample)};
  }
  StreamedWindows::Window window = order.streamed->window(drawn.sample);
  const StreamedWindows::Shard& shard = *window.shard;
  return {std::move(window.shard),
          shard.tokens,
          shard.documents ? &*shard.documents : nullptr,
          nullptr,
          nullptr,
          window.offset};
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

int64_t TrainWindows::num_targets(int64_t first, int64_t rows) const {
  if (!has_documents() && sources_.front().marks == nullptr) return rows * context_;
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const Place place = place_of(first + row);
    count += place.answers != nullptr ? place.answers->num_targets(place.offset, context_)
                                      : context_ - place.documents->num_ends(place.offset, context_);
  }
  return count;
}

void TrainWindows::read(int64_t sample, std::span<int64_t> window) const {
  const Place place = place_of(sample);
  place.tokens.read(place.offset, window);
}

RowShape TrainWindows::shape() const {
  return {.length = context_, .has_documents = has_documents(), .has_positions = has_documents()};
}

void TrainWindows::fill(int64_t first, std::span<int64_t> input_ids, std::span<int64_t> labels,
                        std::span<int64_t> documents, std::span<int64_t> positions) const {
  const int64_t rows = num_rows(context_, input_ids, labels);
  for (int64_t row = 0; row < rows; ++row) {
    const Place place = place_of(first + row);
    const std::span<int64_t> inputs = row_of(input_ids, row, context_);
    const std::span<int64_t> targets = row_of(labels, row, context_);
    place.tokens.read(place.offset, inputs);
    place.tokens.read(place.offset + 1, targets);
    if (place.marks != nullptr) mark_answers(*place.marks, place.offset, targets);
    if (!has_documents()) continue;
    place.documents->mark(place.offset, targets, row_of(documents, row, context_), row_of(positions, row, context_));
  }
}

}  // namespace caravan
