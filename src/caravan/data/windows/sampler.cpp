#include "caravan/data/windows/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

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
    : text_{&tokens, documents, marks}, context_(context), stride_(stride.value_or(context)) {
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

ValidationWindows::ValidationWindows(const RowText& text, std::shared_ptr<const WholeDocuments> whole)
    : text_(text), context_(whole->context()), stride_(context_), whole_(std::move(whole)) {
  if (whole_->size() > 0) return;
  throw DataError({.op = "data",
                   .subject = "the validation text",
                   .fact = fmt::format("has no target in any of its {} documents", whole_->counts().documents),
                   .action = "give more text, or raise data.validation_fraction"});
}

RowShape ValidationWindows::shape() const {
  const bool has_documents = text_.documents != nullptr;
  return {.length = context_, .has_documents = has_documents, .has_positions = has_documents};
}

int64_t ValidationWindows::size() const noexcept {
  if (whole_ != nullptr) return whole_->size();
  return last() <= context_ ? 1 : 2 + (last() - context_ - 1) / stride_;
}

int64_t ValidationWindows::num_targets() const {
  if (whole_ != nullptr) return whole_->num_targets();
  if (text_.marks == nullptr) return last() - (text_.documents == nullptr ? 0 : text_.documents->num_ends(0, last()));
  const auto length = static_cast<size_t>(context_);
  std::vector<int64_t> ids(length), labels(length), documents(length), positions(length);
  int64_t count = 0;
  for (int64_t window = 0; window < size(); ++window) {
    fill(window, ids, labels, documents, positions);
    count += context_ - std::ranges::count(labels, kIgnoredLabel);
  }
  return count;
}

int64_t ValidationWindows::text_bytes() const {
  const int64_t bytes = text_.tokens->info().text_bytes;
  if (text_.marks != nullptr) return bytes;  // those of answers
  return std::llround(static_cast<double>(bytes) * static_cast<double>(num_targets()) / static_cast<double>(last()));
}

/// Nothing for a row after the last.
std::vector<TextPiece> ValidationWindows::pieces_of(int64_t row) const {
  if (row >= size()) return {};
  if (whole_ != nullptr) return whole_->pieces(row);
  const int64_t first = row * stride_;
  return {{.first = first, .count = std::min(context_, last() - first)}};
}

void ValidationWindows::fill(int64_t first, const RowBuffers& rows) const {
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    fill_row(text_, pieces_of(first + row), one);
    if (first + row == 0) return;
    std::ranges::fill(one.labels.first(static_cast<size_t>(context_ - stride_)), kIgnoredLabel);
  });
}

}  // namespace caravan
