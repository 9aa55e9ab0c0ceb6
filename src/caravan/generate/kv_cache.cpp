#include "caravan/generate/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/attention/one_query.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_pass(const std::string& name, std::string fact, const char* action) {
  throw UsageError({"generate", name, std::move(fact), "", action});
}

size_t blocks_of(int64_t length) { return static_cast<size_t>((length + KvCache::kBlock - 1) / KvCache::kBlock); }

/// Positions [at, at + count) of a block = the rows from `first` on of x [rows, kv heads, width].
void copy_rows(const at::Tensor& x, int64_t first, int64_t count, const at::Tensor& block, int64_t at) {
  const auto bytes = static_cast<int64_t>(x.element_size());
  const auto of_row = static_cast<size_t>(x.size(2) * bytes);
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr()) + first * x.stride(0) * bytes;
  auto* to = static_cast<std::byte*>(block.data_ptr()) + at * x.size(2) * bytes;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t head = 0; head < x.size(1); ++head) {
      std::memcpy(to + (head * KvCache::kBlock + row) * x.size(2) * bytes,
                  from + (row * x.stride(0) + head * x.stride(1)) * bytes, of_row);
    }
  }
}

bool has_own_kernel(const at::Tensor& q) {
  const at::ScalarType type = q.scalar_type();
  return q.is_cpu() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

}  // namespace

KvCache::KvCache(Module& model, int64_t context) : context_(context) {
  size_t num_cross = 0;
  for (Module* module : model.modules()) {
    auto* core = dynamic_cast<AttentionCore*>(module);
    if (core == nullptr) continue;
    if (core->options().is_cross) {
      hooks_.push_back(core->add_hook(
          [this, layer = num_cross++](Module&, Tensors inputs, const ForwardContext& of_core, const Next& next) {
            return attend_to_source(layer, std::move(inputs), of_core, next);
          }));
    }
    if (!core->options().is_causal) continue;  // of an encoder, which sees its text once
    layers_.push_back(std::make_unique<Layer>());
    // Inside all other hooks, so that it caches the actual inputs of the core.
    hooks_.push_back(core->add_hook([this, core, layer = layers_.back().get()](
                                        Module&, Tensors inputs, const ForwardContext& of_core, const Next& next) {
      return attend(*core, *layer, std::move(inputs), of_core, next);
    }));
  }
}

int64_t KvCache::num_blocks() const noexcept { return static_cast<int64_t>(uses_.size() - free_.size()); }

KvCache::Sequence KvCache::add() {
  sequences_[next_];
  return next_++;
}

KvCache::Sequence KvCache::fork(Sequence of) {
  Text text = sequences_.at(of);
  text.blocks.resize(blocks_of(text.length));
  for (const size_t block : text.blocks) ++uses_[block];
  sequences_[next_] = std::move(text);
  return next_++;
}

void KvCache::remove(Sequence sequence) {
  release(sequences_.at(sequence).blocks, 0);
  sequences_.erase(sequence);
}

void KvCache::truncate(Sequence sequence, int64_t length) {
  Text& text = sequences_.at(sequence);
  text.length = std::min(text.length, length);
  release(text.blocks, blocks_of(text.length));
}

size_t KvCache::take_block() {
  if (free_.empty()) {
    free_.push_back(uses_.size());
    uses_.push_back(0);
  }
  const size_t block = free_.back();
  free_.pop_back();
  uses_[block] = 1;
  return block;
}

void KvCache::release(std::vector<size_t>& blocks, size_t kept) {
  for (; blocks.size() > kept; blocks.pop_back()) {
    if (--uses_[blocks.back()] == 0) free_.push_back(blocks.back());
  }
}

/// Copies a block that the sequence would write to and another one has too.
void KvCache::make_own(Text& text) {
  if (text.length % kBlock == 0) return;
  size_t& last = text.blocks[static_cast<size_t>(text.length / kBlock)];
  if (uses_[last] == 1) return;
  const size_t own = take_block();
  for (const auto& layer : layers_) {
    if (last >= layer->size() || !(*layer)[last].defined()) continue;
    if (layer->size() <= own) layer->resize(own + 1);
    (*layer)[own] = (*layer)[last].clone();
  }
  --uses_[last];
  last = own;
}

void KvCache::reserve(Text& text, int64_t length) {
  make_own(text);
  while (text.blocks.size() < blocks_of(length)) text.blocks.push_back(take_block());
}

at::Tensor KvCache::begin(const std::vector<Sequence>& rows, const std::vector<int64_t>& counts) {
  rows_.clear();
  const auto [least, most] = std::ranges::minmax(counts);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t length = sequences_.at(rows[i]).length;
    if (length + counts[i] > context_) {
      refuse_pass("cache", fmt::format("{} positions, but the cache holds {}", length + counts[i], context_),
                  "generate fewer tokens, or truncate the sequence");
    }
    if (least < most && (least <= kMostQueries || length > 0)) {
      refuse_pass("cache", fmt::format("{} and {} positions in one pass", least, most), "begin a pass for each");
    }
  }
  std::vector<at::Tensor> positions;
  for (size_t i = 0; i < rows.size(); ++i) {
    Text& text = sequences_.at(rows[i]);
    reserve(text, text.length + counts[i]);
    rows_.push_back(&text);
    positions.push_back(at::arange(text.length, text.length + most, at::kLong));
  }
  counts_ = counts;
  most_ = most;
  return positions.size() == 1 ? positions.front() : at::cat(positions).view({-1, most});
}

void KvCache::finish() {
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i]->length += counts_[i];
  rows_.clear();
}

Tensors KvCache::attend(const AttentionCore& core, Layer& layer, Tensors inputs, const ForwardContext& context,
                        const Next& next) const {
  if (at::GradMode::is_enabled()) {
    refuse_pass(core.name(), "a cache is used while gradients are recorded", "generate under a NoGradGuard");
  }
  const at::Tensor& key = inputs.at(1);
  const auto rows = static_cast<int64_t>(rows_.size());
  if (rows == 0 || key.size(0) != rows || key.size(1) != most_) {
    refuse_pass(core.name(),
                fmt::format("{} sequences of {} new positions, but the pass began with {} of {}", key.size(0),
                            key.size(1), rows, rows == 0 ? 0 : most_),
                "give begin() the sequences of the next pass");
  }
  append(layer, key, inputs.at(2));
  if (most_ <= kMostQueries && has_own_kernel(key)) return {attend_to_blocks(core, layer, inputs, context)};
  const bool are_new = std::ranges::all_of(rows_, [](const Text* text) { return text->length == 0; });
  if (are_new) return next(std::move(inputs), context);  // queries after the last of a row see others, nobody sees them
  return {attend_to_copies(layer, inputs, context, next)};
}

/// Keys and values of the source come with the first pass of a sequence, which it has alone.
Tensors KvCache::attend_to_source(size_t layer, Tensors inputs, const ForwardContext& context, const Next& next) const {
  if (inputs.at(1).size(1) > 0) {
    std::vector<Tensors>& source = rows_.at(0)->source;
    if (source.size() <= layer) source.resize(layer + 1);
    source[layer] = {inputs[1], inputs[2]};
    return next(std::move(inputs), context);
  }
  std::vector<at::Tensor> out;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const Tensors& source = rows_[row]->source.at(layer);
    out.push_back(next({inputs[0].narrow(0, static_cast<int64_t>(row), 1), source[0], source[1]}, context).front());
  }
  return {at::cat(out)};
}

void KvCache::append(Layer& layer, const at::Tensor& key_in, const at::Tensor& value_in) const {
  const auto with_adjacent = [](const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); };
  const at::Tensor key = with_adjacent(key_in), value = with_adjacent(value_in);
  for (size_t row = 0; row < rows_.size(); ++row) {
    const auto of_row = static_cast<int64_t>(row);
    append(layer, *rows_[row], counts_[row], key.select(0, of_row), value.select(0, of_row));
  }
}

void KvCache::append(Layer& layer, const Text& text, int64_t count, const at::Tensor& keys,
                     const at::Tensor& values) const {
  for (int64_t done = 0, num = 0; done < count; done += num) {
    const int64_t at = (text.length + done) % kBlock;
    const size_t id = text.blocks[static_cast<size_t>((text.length + done) / kBlock)];
    num = std::min(count - done, kBlock - at);
    if (layer.size() <= id) layer.resize(id + 1);
    if (!layer[id].defined()) layer[id] = at::empty({2, keys.size(1), kBlock, keys.size(2)}, keys.options());
    copy_rows(keys, done, num, layer[id].select(0, 0), at);
    copy_rows(values, done, num, layer[id].select(0, 1), at);
  }
}

at::Tensor KvCache::attend_to_blocks(const AttentionCore& core, const Layer& layer, const Tensors& inputs,
                                     const ForwardContext& context) const {
  const at::Tensor& q = inputs.at(0);
  const int64_t kv_heads = inputs.at(1).size(2), window = core.options().window;
  const auto of_keys = static_cast<ptrdiff_t>(kv_heads * kBlock * q.size(3)) * static_cast<ptrdiff_t>(q.element_size());
  std::vector<CachedKeys> all;
  int64_t most = 1;
  for (const Text* text : rows_) {
    CachedKeys seen;
    for (const size_t id : text->blocks) {
      const auto* block = static_cast<const std::byte*>(layer[id].const_data_ptr());
      seen.keys.push_back(block);
      seen.values.push_back(block + of_keys);
    }
    for (int64_t i = 0; i < most_; ++i) {
      seen.end = text->length + i + 1;
      seen.first = window > 0 ? std::max<int64_t>(seen.end - window, 0) : 0;
      most = std::max(most, seen.end);
      all.push_back(seen);
    }
  }
  return attention_to_cache(q, kv_heads, kBlock, all, core.scores(q.size(2), most, context, q.options()));
}

/// For what attention_to_cache does not take, and for more queries than it is made for.
at::Tensor KvCache::attend_to_copies(const Layer& layer, const Tensors& inputs, const ForwardContext& context,
                                     const Next& next) const {
  std::vector<at::Tensor> out;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const int64_t length = rows_[row]->length + most_;
    std::vector<at::Tensor> blocks;
    for (size_t i = 0; i < blocks_of(length); ++i) blocks.push_back(layer[rows_[row]->blocks[i]]);
    const at::Tensor all = at::cat(blocks, 2).narrow(2, 0, length).transpose(1, 2).unsqueeze(1);
    out.push_back(next({inputs.at(0).narrow(0, static_cast<int64_t>(row), 1), all.select(0, 0), all.select(0, 1),
                        at::arange(rows_[row]->length, length, inputs.at(0).options().dtype(at::kLong))},
                       context)
                      .front());
  }
  return at::cat(out);
}

}  // namespace caravan
