#include "caravan/generate/text_windows.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "caravan/nn/product/few_rows_product.h"

namespace caravan {

TextWindows::TextWindows(TextModel model)
    : model_(std::move(model)), cache_(model_.model, model_.model.config().context) {}

TextWindows::Window TextWindows::open(size_t num_ids, std::vector<int64_t> source) {
  const auto length = static_cast<size_t>(cache_.context());
  const size_t begin = num_ids > length ? num_ids - length : 0;
  return {cache_.add(), begin, begin, std::move(source)};
}

TextWindows::Window TextWindows::fork(const Window& of) {
  return {cache_.fork(of.sequence), of.first, of.seen, of.source};
}

void TextWindows::cut(Window& window, size_t num_ids) {
  if (window.seen <= num_ids) return;
  window.seen = std::max(window.first, num_ids);
  cache_.truncate(window.sequence, static_cast<int64_t>(window.seen - window.first));
}

int64_t TextWindows::num_fresh(Window& window, size_t num_ids) {
  const auto length = static_cast<size_t>(cache_.context());
  if (num_ids - window.first > length) {
    cache_.truncate(window.sequence, 0);
    window.first = window.seen = num_ids - (length - length / 2);
  }
  // Keys that were rotated by other frequencies do not fit those of a longer text.
  const RopeScaling& scaling = model_.model.config().rope_scaling;
  const auto original = static_cast<size_t>(scaling.original_context);
  const bool changes = scaling.kind == RopeScalingKind::longrope && window.seen - window.first <= original &&
                       num_ids - window.first > original;
  if (changes && window.seen > window.first) {
    cache_.truncate(window.sequence, 0);
    window.seen = window.first;
  }
  return static_cast<int64_t>(num_ids - window.seen);
}

int64_t TextWindows::room(const Window& window, size_t num_ids) const {
  return std::max<int64_t>(0, cache_.context() - static_cast<int64_t>(num_ids - window.first));
}

int64_t TextWindows::most_texts(int64_t fresh) const {
  const RopeScalingKind kind = model_.model.config().rope_scaling.kind;
  const bool depends_on_length = kind == RopeScalingKind::dynamic || kind == RopeScalingKind::longrope;
  if (depends_on_length || fresh > KvCache::kMostQueries) return 1;
  return std::max<int64_t>(1, EachRowAlone::kMost / std::max<int64_t>(1, fresh));
}

at::Tensor TextWindows::run(std::span<const Text> texts, int64_t last) {
  const auto fresh = static_cast<int64_t>(texts.front().ids.size() - texts.front().window->seen);
  at::Tensor ids = at::empty({static_cast<int64_t>(texts.size()), fresh}, at::kLong);
  std::vector<KvCache::Sequence> rows;
  int64_t* to = ids.mutable_data_ptr<int64_t>();
  for (const Text& text : texts) {
    rows.push_back(text.window->sequence);
    to = std::copy(text.ids.begin() + static_cast<std::ptrdiff_t>(text.window->seen), text.ids.end(), to);
  }
  ForwardContext context{.phase = Phase::generate};
  const at::Tensor positions = cache_.begin(rows, fresh);
  if (model_.model.config().has_encoder()) {  // whose tokens know distances alone
    const std::vector<int64_t>& source = texts.front().window->source;
    context.sources = texts.front().window->needs_source() ? static_cast<int64_t>(source.size()) : 0;
    if (context.sources > 0) ids = at::cat({at::tensor(source, at::kLong).unsqueeze(0), ids}, 1);
  } else {
    context.positions = positions;
  }
  const EachRowAlone alone;
  at::Tensor logits = model_.logits(ids, context, last);
  cache_.finish();
  for (const Text& text : texts) text.window->seen = text.ids.size();
  return logits;
}

}  // namespace caravan
