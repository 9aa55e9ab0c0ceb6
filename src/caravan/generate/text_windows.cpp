#include "caravan/generate/text_windows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/nn/product/few_rows_product.h"
#include "caravan/nn/product/product_choice.h"

namespace caravan {
namespace {

constexpr int64_t kLong = 256;      ///< ids of a text whose products are fast without others
constexpr int64_t kMostIds = 1024;  ///< of prompts that share a pass: more are no faster, and take more memory

}  // namespace

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
  if (model_.model.config().rope_scaling.depends_on_length()) return 1;
  if (fresh <= KvCache::kMostQueries) return std::max<int64_t>(1, EachRowAlone::kMost / std::max<int64_t>(1, fresh));
  // How many rows an expert gets of a text alone decides by which kernel it multiplies them.
  if (fresh > kLong || model_.model.config().moe.experts > 0) return 1;
  return std::clamp<int64_t>(kMostIds / fresh, 1, EachRowAlone::kMost);
}

bool TextWindows::go_together(const Window& longer, int64_t fresh_of_longer, const Window& shorter,
                              int64_t fresh) const {
  if (longer.needs_source() || shorter.needs_source()) return false;
  if (fresh <= KvCache::kMostQueries) return fresh == fresh_of_longer;
  const auto begins = [](const Window& window) { return window.seen == window.first; };
  return begins(longer) && begins(shorter) && 4 * fresh >= 3 * fresh_of_longer;
}

at::Tensor TextWindows::run(std::span<const Text> texts, int64_t last) {
  std::vector<KvCache::Sequence> rows;
  std::vector<int64_t> counts;
  for (const Text& text : texts) {
    rows.push_back(text.window->sequence);
    counts.push_back(static_cast<int64_t>(text.ids.size() - text.window->seen));
  }
  const auto [least, most] = std::ranges::minmax(counts);
  at::Tensor ids = at::zeros({static_cast<int64_t>(texts.size()), most}, at::kLong);
  int64_t* to = ids.mutable_data_ptr<int64_t>();
  for (const Text& text : texts) {
    std::copy(text.ids.begin() + static_cast<std::ptrdiff_t>(text.window->seen), text.ids.end(), to);
    to += most;
  }
  ForwardContext context{.phase = Phase::generate};
  const at::Tensor positions = cache_.begin(rows, counts);
  if (model_.model.config().has_encoder()) {  // whose tokens know distances alone
    const auto needs_source = [](const Text& text) { return text.window->needs_source(); };
    if (texts.size() > 1 && std::ranges::any_of(texts, needs_source)) {
      throw InternalError({"generate", "texts", "that need their sources are run together", "", ""});
    }
    const std::vector<int64_t> source = std::exchange(texts.front().window->source, {});
    context.sources = static_cast<int64_t>(source.size());
    if (context.sources > 0) ids = at::cat({at::tensor(source, at::kLong).unsqueeze(0), ids}, 1);
  } else {
    context.positions = positions;
  }
  std::optional<EachRowAlone> alone;
  if (most <= kLong) alone.emplace(most <= KvCache::kMostQueries ? EachRowAlone::kMost : kFewRows - 1);
  at::Tensor logits = model_.logits(ids, context, last, least < most ? std::move(counts) : std::vector<int64_t>());
  cache_.finish();
  for (const Text& text : texts) text.window->seen = text.ids.size();
  return logits;
}

}  // namespace caravan
