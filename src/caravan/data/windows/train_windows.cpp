#include "caravan/data/windows/train_windows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr int64_t kLongestPeriod = 10'000;

/// The weights times `scale` as whole numbers; empty if they are not whole, or if their sum is more than a period.
std::vector<int64_t> whole_weights(const std::vector<TrainSource>& sources, double scale) {
  std::vector<int64_t> whole;
  int64_t sum = 0;
  for (const TrainSource& source : sources) {
    const double scaled = source.weight * scale;
    const double rounded = std::round(scaled);
    // 0.7 * 10 need not be 7 exactly.
    if (rounded < 1 || rounded > static_cast<double>(kLongestPeriod) || std::abs(scaled - rounded) > 1e-9 * rounded) {
      return {};
    }
    whole.push_back(static_cast<int64_t>(rounded));
    sum += whole.back();
  }
  return sum <= kLongestPeriod ? whole : std::vector<int64_t>{};
}

/// Ten-thousandths of the sum; the rounding remainder goes to the largest.
std::vector<int64_t> rounded_weights(const std::vector<TrainSource>& sources) {
  double sum = 0;
  for (const TrainSource& source : sources) sum += source.weight;
  std::vector<int64_t> rounded;
  for (const TrainSource& source : sources) {
    rounded.push_back(std::llround(source.weight / sum * static_cast<double>(kLongestPeriod)));
    if (rounded.back() >= 1) continue;
    throw DataError(
        {.op = "data",
         .subject = source.name,
         .fact = fmt::format("has a weight of {}, less than a ten-thousandth of all, {}", source.weight, sum),
         .action = "leave it out, or raise its weight"});
  }
  const int64_t total = std::accumulate(rounded.begin(), rounded.end(), int64_t{0});
  *std::ranges::max_element(rounded) += kLongestPeriod - total;
  return rounded;
}

/// Samples of each source in a period.
std::vector<int64_t> quotas_of(const std::vector<TrainSource>& sources) {
  if (sources.size() == 1) return {1};
  for (const TrainSource& source : sources) {
    if (source.weight > 0 && std::isfinite(source.weight)) continue;
    throw DataError({.op = "data",
                     .subject = source.name,
                     .fact = fmt::format("has a weight of {}", source.weight),
                     .action = "use a number above 0"});
  }
  for (const double scale : {1.0, 10.0, 100.0, 1000.0}) {
    std::vector<int64_t> whole = whole_weights(sources, scale);
    if (whole.empty()) continue;
    const int64_t divisor = std::accumulate(whole.begin(), whole.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
    for (int64_t& weight : whole) weight /= divisor;
    return whole;
  }
  return rounded_weights(sources);
}

}  // namespace

TrainWindows::TrainWindows(const std::vector<TrainSource>& sources, int64_t context, uint64_t seed)
    : sources_(sources), context_(context), quotas_(quotas_of(sources)) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // texts of equal length are visited in different orders
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TrainSource& source = sources_[i];
    const uint64_t own = seed + kOdd * i;
    if (source.streams == nullptr) {
      orders_.push_back({.sampler = Sampler(source.tokens->size(), context, own, source.name)});
      if (source.marks == nullptr) continue;
      orders_.back().answers = std::make_shared<const AnswerCounts>(*source.marks, source.documents != nullptr);
    } else {
      orders_.push_back(
          {.streamed = std::make_shared<StreamedWindows>(*source.streams, i, context, own, source.packs)});
    }
  }
  // Each turn goes to the source that is furthest behind its quota; ties go to the first.
  const int64_t period = std::accumulate(quotas_.begin(), quotas_.end(), int64_t{0});
  std::vector<int64_t> drawn(quotas_.size());
  for (int64_t turn = 0; turn < period; ++turn) {
    size_t next = 0;
    const auto behind = [&](size_t i) { return quotas_[i] * (turn + 1) - drawn[i] * period; };
    for (size_t i = 1; i < quotas_.size(); ++i) {
      if (behind(i) > behind(next)) next = i;
    }
    turns_.push_back(next);
    earlier_.push_back(drawn[next]++);
  }
}

TrainWindows::Draw TrainWindows::draw(int64_t sample) const {
  const auto period = static_cast<int64_t>(turns_.size());
  const auto turn = static_cast<size_t>(sample % period);
  const size_t source = turns_[turn];
  return {source, sample / period * quotas_[source] + earlier_[turn]};
}

std::vector<int64_t> TrainWindows::drawn(int64_t sample) const {
  const auto period = static_cast<int64_t>(turns_.size());
  std::vector<int64_t> counts;
  for (const int64_t quota : quotas_) counts.push_back(sample / period * quota);
  for (int64_t turn = 0; turn < sample % period; ++turn) ++counts[turns_[static_cast<size_t>(turn)]];
  return counts;
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
