#include "caravan/data/windows/sampler.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

void check_context(int64_t context) {
  if (context >= 1) return;
  throw ShapeError(
      {.op = "data", .subject = "context", .fact = fmt::format("is {} tokens", context), .action = "use at least 1"});
}

}  // namespace

int64_t num_rows(int64_t context, std::span<int64_t> input_ids, std::span<int64_t> labels) {
  if (input_ids.size() == labels.size() && static_cast<int64_t>(input_ids.size()) % context == 0) {
    return static_cast<int64_t>(input_ids.size()) / context;
  }
  throw ShapeError(
      {.op = "data",
       .subject = "a batch",
       .fact = fmt::format("of {} input ids and {} labels, in rows of {}", input_ids.size(), labels.size(), context),
       .action = "give both rows * context elements"});
}

std::span<int64_t> row_of(std::span<int64_t> all, int64_t row, int64_t context) {
  return all.subspan(static_cast<size_t>(row * context), static_cast<size_t>(context));
}

Sampler::Sampler(int64_t num_tokens, int64_t context, uint64_t seed, const std::string& name)
    : context_(context), seed_(seed) {
  check_context(context);
  if (num_tokens <= context) {
    throw DataError(
        {.op = "data",
         .subject = name.empty() ? "the training text" : "the training text " + name,
         .fact = fmt::format("has {} tokens, but a window of context {} needs {}", num_tokens, context, context + 1),
         .action = "give more text, or lower model.context"});
  }
  // One window less than fits at phase 0 fits at every phase, and the phases cover a whole window.
  num_windows_ = std::max<int64_t>(1, (num_tokens - 1) / context - 1);
  num_phases_ = num_tokens - num_windows_ * context;
}

int64_t Sampler::offset(int64_t sample) const {
  const int64_t epoch = sample / num_windows_;
  const RandomStream phases(seed_, "data.phase", epoch);
  const uint64_t random = uint64_t{phases.bits(0)} << 32 | phases.bits(1);
  const auto phase = static_cast<int64_t>(random % static_cast<uint64_t>(num_phases_));
  const RandomPermutation order(seed_, "data.order", epoch, static_cast<uint64_t>(num_windows_));
  return phase + static_cast<int64_t>(order(static_cast<uint64_t>(sample % num_windows_))) * context_;
}

ValidationWindows::ValidationWindows(const TokenFile& tokens, int64_t context, const Documents* documents,
                                     std::optional<int64_t> stride, const TokenFile* marks)
    : tokens_(tokens), context_(context), stride_(stride.value_or(context)), documents_(documents), marks_(marks) {
  check_context(context);
  if (stride_ < 1 || stride_ > context_) {
    throw ShapeError({.op = "data",
                      .subject = "stride",
                      .fact = fmt::format("is {} tokens for windows of {}", stride_, context_),
                      .action = fmt::format("use 1 to {}", context_)});
  }
  if (tokens.size() >= 2) return;
  throw DataError({.op = "data",
                   .subject = "the validation text",
                   .fact = fmt::format("has {} tokens, but an evaluation needs 2", tokens.size()),
                   .action = "give more text, or raise data.validation_fraction"});
}

RowShape ValidationWindows::shape() const {
  const bool has_documents = documents_ != nullptr;
  return {.length = context_, .has_documents = has_documents, .has_positions = has_documents};
}

int64_t ValidationWindows::num_targets() const {
  if (marks_ == nullptr) return last() - (documents_ == nullptr ? 0 : documents_->num_ends(0, last()));
  const auto length = static_cast<size_t>(context_);
  std::vector<int64_t> ids(length), labels(length), documents(length), positions(length);
  int64_t count = 0;
  for (int64_t window = 0; window < size(); ++window) {
    fill(window, ids, labels, documents, positions);
    count += context_ - std::ranges::count(labels, kIgnoredLabel);
  }
  return count;
}

void ValidationWindows::fill(int64_t first_window, std::span<int64_t> input_ids, std::span<int64_t> labels,
                             std::span<int64_t> documents, std::span<int64_t> positions) const {
  const int64_t rows = num_rows(context_, input_ids, labels);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t window = first_window + row;
    const int64_t first = window < size() ? window * stride_ : last();
    const auto count = static_cast<size_t>(std::min(context_, last() - first));
    const std::span<int64_t> inputs = row_of(input_ids, row, context_);
    const std::span<int64_t> targets = row_of(labels, row, context_);
    tokens_.read(first, inputs.first(count));
    tokens_.read(first + 1, targets.first(count));
    if (marks_ != nullptr) mark_answers(*marks_, first, targets.first(count));
    std::ranges::fill(inputs.subspan(count), 0);
    std::ranges::fill(targets.subspan(count), kIgnoredLabel);
    if (window > 0) std::ranges::fill(targets.first(static_cast<size_t>(context_ - stride_)), kIgnoredLabel);
    if (documents_ == nullptr) continue;
    documents_->mark(first, targets, row_of(documents, row, context_), row_of(positions, row, context_));
  }
}

}  // namespace caravan
