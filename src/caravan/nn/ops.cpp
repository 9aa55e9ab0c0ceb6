#include "caravan/nn/ops.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// `layout` with the sizes of uneven shards of dim 2 multiplied by `to` / `from`: a shard counts heads, or elements.
Layout scaled(const Layout& layout, int64_t from, int64_t to) {
  std::vector<Layout::Entry> entries = layout.entries();
  for (auto& [axis, placement] : entries) {
    if (!placement.is_shard(2) || placement.sizes().empty()) continue;
    Shard shard{.dim = 2, .sizes = placement.sizes(), .blocks = placement.blocks()};
    for (int64_t& size : shard.sizes) size = size * to / from;
    placement = std::move(shard);
  }
  return Layout(std::move(entries));
}

std::string output_of(std::string_view what) { return fmt::format("the output of {}", what); }

const char* name_of(Dim dim) {
  constexpr const char* kNames[kNumDims] = {"batch", "sequence", "feature", "head", "hidden"};
  return kNames[static_cast<size_t>(dim)];
}

}  // namespace

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const ForwardContext& context, std::string_view what) {
  static const OpType kType{"bsf,bsf->bsf", "", {{0}, {1}}};
  at::Tensor sum = a + b;
  record_layout(context, kType, sum, {a, b}, what);
  return sum;
}

std::pair<at::Tensor, at::Tensor> split_source(const at::Tensor& x, int64_t sources, const ForwardContext& context,
                                               std::string_view what) {
  static const OpType kType{"bsf->bsf", "s", {{0}}};
  if (x.size(1) < sources) {
    throw ShapeError({"model", std::string(what), fmt::format("{} tokens with a source of {}", x.size(1), sources), "",
                      "give rows of a source followed by its target"});
  }
  const std::vector<at::Tensor> parts = x.split_with_sizes({sources, x.size(1) - sources}, 1);
  std::pair<at::Tensor, at::Tensor> both{parts[1].contiguous(), parts[0].contiguous()};
  record_layout(context, kType, both.first, {x}, what);
  record_layout(context, kType, both.second, {x}, what);
  return both;
}

at::Tensor split_heads(const at::Tensor& x, int64_t head_width, const ForwardContext& context, std::string_view what) {
  const int64_t width = x.size(-1);
  if (width % head_width != 0) {
    throw ShapeError({"attention", std::string(what),
                      fmt::format("{} local columns are not a multiple of the head width {}", width, head_width), "",
                      "split it by a degree that divides the number of heads"});
  }
  at::Tensor heads = x.unflatten(-1, {width / head_width, head_width});
  if (context.layouts != nullptr) {  // all layouts stay the same
    context.layouts->set(heads, scaled(context.layouts->of(x, what), head_width, 1), output_of(what));
  }
  return heads;
}

at::Tensor merge_heads(const at::Tensor& x, const ForwardContext& context, std::string_view what) {
  static const OpType kType{"bsnw->bsn", "w", {{0}}};
  at::Tensor merged = x.flatten(2);
  record_layout(context, kType, merged, {x}, what);
  if (context.layouts != nullptr) {
    context.layouts->set(merged, scaled(context.layouts->of(merged, what), 1, x.size(3)), output_of(what));
  }
  return merged;
}

at::Tensor token_positions(const at::Tensor& x, const ForwardContext& context, std::string_view what) {
  const int64_t sequence = x.size(1);
  const at::Tensor& positions = context.positions;
  if (!positions.defined()) {
    const DimIndex& index = context[Dim::sequence];
    if (index.is_whole() || index == DimIndex(0, sequence, sequence)) return positions;
    throw ShapeError({"positions", std::string(what), "the tokens are a piece of a sequence", "",
                      "set ForwardContext::positions to theirs"});
  }
  const bool fits = positions.scalar_type() == at::kLong &&
                    (positions.sizes() == at::IntArrayRef{sequence} || positions.sizes() == x.sizes().slice(0, 2));
  if (fits) return positions;
  throw ShapeError({"positions", std::string(what),
                    fmt::format("positions [{}] of tokens [{}]", join(positions.sizes()), join(x.sizes().slice(0, 2))),
                    "", "give int64 [sequence] or [batch, sequence] of the tokens that are here"});
}

const DimIndex& checked_index(const ForwardContext& context, Dim dim, int64_t local, std::string_view what) {
  const DimIndex& index = context[dim];
  try {
    index.global(local);
  } catch (const ShapeError& error) {
    ErrorText text = error.text();
    text.subject = fmt::format("{}, {}", what, name_of(dim));
    throw ShapeError(std::move(text));
  }
  return index;
}

}  // namespace caravan
