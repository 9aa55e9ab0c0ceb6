#include "caravan/data/tasks/record_task.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

std::span<const int32_t> first_of(const std::vector<int32_t>& ids, int64_t count) {
  return std::span(ids).first(static_cast<size_t>(count));
}

void check_room(const char* key, int64_t context, int64_t least, const char* what) {
  if (context >= least) return;
  throw ShapeError({"data", key, fmt::format("is {}: a row has no room for {}", context, what), "",
                    fmt::format("use at least {}", least)});
}

std::vector<WeighedSource> weights_of(const std::vector<RecordSource>& sources) {
  std::vector<WeighedSource> weights;
  for (const RecordSource& source : sources) weights.push_back({source.weight, source.name});
  return weights;
}

}  // namespace

std::pair<int64_t, int64_t> longest_first(int64_t first, int64_t second, int64_t room) {
  room = std::max<int64_t>(room, 0);
  if (first + second <= room) return {first, second};
  int64_t shorter = std::min(first, second);
  int64_t longer = std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  return first > second ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

ClassifyTask::ClassifyTask(const Tokenizer& tokenizer, int64_t context, bool are_pairs, LabelPlace place)
    : tokenizer_(tokenizer), context_(context), pad_(filling_token(tokenizer)), are_pairs_(are_pairs), place_(place) {
  const std::vector<int32_t> none;
  const Encoding special = are_pairs ? tokenizer.with_special_tokens(none, none) : tokenizer.with_special_tokens(none);
  num_special_ = static_cast<int64_t>(special.ids.size());
  check_room(
      "model.context", context, num_special_ + (are_pairs ? 2 : 1),
      are_pairs ? "a token of each text beside the special tokens" : "a token of text beside the special tokens");
}

RowShape ClassifyTask::shape() const {
  return {.length = context_, .has_documents = place_ == LabelPlace::first, .has_token_types = are_pairs_};
}

void ClassifyTask::fill(const RecordList::Texts& record, const RowBuffers& row) const {
  const auto [first, second] = longest_first(static_cast<int64_t>(record.first.size()),
                                             static_cast<int64_t>(record.second.size()), context_ - num_special_);
  const Encoding encoding =
      are_pairs_ ? tokenizer_.with_special_tokens(first_of(record.first, first), first_of(record.second, second))
                 : tokenizer_.with_special_tokens(first_of(record.first, first));
  std::ranges::fill(row.ids, pad_);
  std::ranges::fill(row.labels, kIgnoredLabel);
  std::ranges::copy(encoding.ids, row.ids.begin());
  // A text may have no tokens at all.
  const size_t count = std::max<size_t>(encoding.ids.size(), 1);
  row.labels[place_ == LabelPlace::first ? 0 : count - 1] = record.label;
  if (place_ == LabelPlace::first) {
    std::ranges::fill(row.documents, 0);
    std::ranges::fill(row.documents.first(count), 1);
  }
  if (!are_pairs_) return;
  std::ranges::fill(row.token_types, 0);
  std::ranges::copy(encoding.type_ids, row.token_types.begin());
}

PairTask::PairTask(const Tokenizer& tokenizer, const Settings& settings)
    : tokenizer_(tokenizer), settings_(settings), end_(end_token(tokenizer, "pairs")), pad_(filling_token(tokenizer)) {
  const std::vector<int32_t> probe{end_ == 0 ? 1 : 0};
  adds_end_ = tokenizer.with_special_tokens(probe).ids.back() == end_;
  num_special_ = static_cast<int64_t>(ended({}, true).size());
  if (is_decoder()) {
    // The row has a token more than the inputs: the end of the target, and that of the source within num_special_.
    check_room("model.context", settings.context, num_special_ + 2, "a token of source and of target");
    return;
  }
  check_room("model.context", settings.context, num_special_ + 1, "a token of the target");
  check_room("model.source_context", settings.source_context, num_special_ + 1, "a token of the source");
}

RowShape PairTask::shape() const {
  return {.length = settings_.source_context + settings_.context,
          .num_sources = settings_.source_context,
          .has_documents = !is_decoder()};
}

std::vector<int64_t> PairTask::ended(std::span<const int32_t> text, bool has_special) const {
  std::vector<int64_t> ids;
  if (has_special) {
    const Encoding encoding = tokenizer_.with_special_tokens(text);
    ids.assign(encoding.ids.begin(), encoding.ids.end());
  } else {
    ids.assign(text.begin(), text.end());
  }
  if (!has_special || !adds_end_) ids.push_back(end_);
  return ids;
}

std::pair<int64_t, int64_t> PairTask::truncated(int64_t source, int64_t target) const {
  if (is_decoder()) return longest_first(source, target, settings_.context + 1 - num_special_ - 1);
  return {std::min(source, settings_.source_context - num_special_),
          std::min(target, settings_.context - num_special_)};
}

int64_t PairTask::num_targets(const RecordList::Size& record) const {
  return truncated(record.first, record.second).second + (is_decoder() ? 1 : num_special_);
}

void PairTask::fill(const RecordList::Texts& record, const RowBuffers& row) const {
  const auto [first, second] =
      truncated(static_cast<int64_t>(record.first.size()), static_cast<int64_t>(record.second.size()));
  const std::vector<int64_t> source = ended(first_of(record.first, first), true);
  const std::vector<int64_t> target = ended(first_of(record.second, second), !is_decoder());
  if (is_decoder()) return fill_decoder(source, target, row);
  fill_sequence_pair(
      source, target,
      {.num_sources = settings_.source_context, .start = settings_.decoder_start.value_or(pad_), .pad = pad_}, row);
}

void PairTask::fill_decoder(const std::vector<int64_t>& source, const std::vector<int64_t>& target,
                            const RowBuffers& row) const {
  std::ranges::fill(row.ids, pad_);
  std::ranges::fill(row.labels, kIgnoredLabel);
  const auto end_of_source = std::ranges::copy(source, row.ids.begin()).out;
  std::copy(target.begin(), target.end() - 1, end_of_source);
  std::ranges::copy(target, row.labels.begin() + static_cast<std::ptrdiff_t>(source.size()) - 1);
}

RecordTaskRows::RecordTaskRows(std::vector<RecordSource> sources, std::shared_ptr<const RecordTask> task, uint64_t seed)
    : sources_(std::move(sources)), turns_(weights_of(sources_)), task_(std::move(task)), seed_(seed) {
  for (const RecordSource& source : sources_) check_source(source);
}

void RecordTaskRows::check_source(const RecordSource& source) {
  const std::string name = source.name.empty() ? "data.text" : source.name;
  const int64_t count = source.records.size();
  if (count == 0) {
    throw DataError(
        {"data", name, "has no record for training", "", "give more of them, or another data.validation_fraction"});
  }
  int64_t num_idle = 0;
  for (int64_t record = 0; record < count; ++record) num_idle += task_->is_idle(source.records, record) ? 1 : 0;
  if (num_idle == 0) return;
  const std::string fact = "the same chosen and rejected answer within model.context, and so nothing to learn";
  if (num_idle == count) {
    throw DataError({"data", name,
                     count == 1 ? fmt::format("has one pair, with {}", fact)
                                : fmt::format("has {} pairs, all with {}", count, fact),
                     "", "give pairs whose answers differ, or raise model.context"});
  }
  notes_.push_back(
      fmt::format("{}: {} of {} pairs {} {}", name, num_idle, count, num_idle == 1 ? "has" : "have", fact));
}

std::pair<const RecordList*, int64_t> RecordTaskRows::record_of(int64_t sample) const {
  const Draw drawn = turns_.draw(sample);
  const RecordList& records = sources_[drawn.source].records;
  const RandomPermutation order(seed_of_source(seed_, drawn.source), "data.order", drawn.sample / records.size(),
                                static_cast<uint64_t>(records.size()));
  return {&records, static_cast<int64_t>(order(static_cast<uint64_t>(drawn.sample % records.size())))};
}

std::optional<double> RecordTaskRows::epochs(size_t source, int64_t samples) const {
  return static_cast<double>(samples) / static_cast<double>(sources_[source].records.size());
}

void RecordTaskRows::fill(int64_t first, const RowBuffers& rows) const {
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    const auto [records, record] = record_of(first + row);
    task_->fill(records->read(record), one);
  });
}

int64_t RecordTaskRows::num_targets(int64_t first, int64_t rows) const {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto [records, record] = record_of(first + row);
    count += task_->num_targets(records->size_of(record));
  }
  return count;
}

void RecordTaskValidation::fill(int64_t first, const RowBuffers& rows) const {
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    if (first + row >= size()) return fill_padding(one);
    task_->fill(records_.read(first + row), one);
  });
}

int64_t RecordTaskValidation::num_targets() const {
  int64_t count = 0;
  for (int64_t record = 0; record < size(); ++record) count += task_->num_targets(records_.size_of(record));
  return count;
}

}  // namespace caravan
