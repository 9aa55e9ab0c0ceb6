#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention.h"

namespace caravan {

/// Keys and values of the positions of some sequences, for generation: in blocks, which a sequence takes as it grows
/// and shares with those forked from it. While it lives, every AttentionCore of self-attention ("attention.core")
/// appends those of new positions to the sequences of the pass, and each query sees those of its own sequence. Cross
/// attention keeps the keys and values of a sequence's source, which its first pass has (ForwardContext::sources). Up
/// to kMostQueries queries of a sequence are computed each as it would be alone, bit for bit (attention_to_cache). On
/// the CPU, under no_grad.
class KvCache {
 public:
  using Sequence = int64_t;
  static constexpr int64_t kBlock = 64;  ///< positions
  static constexpr int64_t kMostQueries = 16;

  /// `model` outlives the cache. Each sequence holds up to `context` positions.
  KvCache(Module& model, int64_t context);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int64_t context() const noexcept { return context_; }
  /// Blocks in use. Each takes memory in every layer; those of removed sequences are used again.
  int64_t num_blocks() const noexcept;

  /// A sequence without positions; one with those of another, which it does not copy until one of them grows.
  Sequence add();
  Sequence fork(Sequence of);
  void remove(Sequence sequence);
  int64_t length(Sequence sequence) const { return sequences_.at(sequence).length; }
  /// Drops the positions from `length` on: a rejected draft, another continuation.
  void truncate(Sequence sequence, int64_t length);

  /// The next pass has `counts` new positions of `rows`, all different: ids [rows, most of a row], of which shorter
  /// rows use the first; rows of unequal counts have no positions yet, and more than kMostQueries. Returns the
  /// positions, [most] of one row or [rows, most], for ForwardContext::positions. Throws UsageError for more positions
  /// than the context. A pass that was not finished leaves no trace.
  at::Tensor begin(const std::vector<Sequence>& rows, const std::vector<int64_t>& counts);
  /// After the pass: the sequences have these positions.
  void finish();

 private:
  struct Text {
    int64_t length = 0;
    std::vector<size_t> blocks;
    std::vector<Tensors> source{};  ///< keys and values of each layer of cross attention; not copied by a fork
  };
  /// Of a layer: [2, kv heads, kBlock, width] for each block.
  using Layer = std::vector<at::Tensor>;

  Tensors attend_to_source(size_t layer, Tensors inputs, const ForwardContext& context, const Next& next) const;
  size_t take_block();
  void release(std::vector<size_t>& blocks, size_t kept);
  void make_own(Text& text);
  void reserve(Text& text, int64_t length);
  Tensors attend(const AttentionCore& core, Layer& layer, Tensors inputs, const ForwardContext& context,
                 const Next& next) const;
  void append(Layer& layer, const at::Tensor& key, const at::Tensor& value) const;
  void append(Layer& layer, const Text& text, int64_t count, const at::Tensor& keys, const at::Tensor& values) const;
  at::Tensor attend_to_blocks(const AttentionCore& core, const Layer& layer, const Tensors& inputs,
                              const ForwardContext& context) const;
  at::Tensor attend_to_copies(const Layer& layer, const Tensors& inputs, const ForwardContext& context,
                              const Next& next) const;

  int64_t context_;
  std::map<Sequence, Text> sequences_;
  Sequence next_ = 0;
  std::vector<int> uses_;     ///< of each block
  std::vector<size_t> free_;  ///< blocks
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Text*> rows_;      ///< of the pass
  std::vector<int64_t> counts_;  ///< of their new positions
  int64_t most_ = 0;             ///< of these
  std::vector<Hook> hooks_;
};

}  // namespace caravan
