#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/module.h"

namespace caravan {

/// Keys and values of earlier positions, for generation. While it lives, every AttentionCore of the model appends those
/// of the new positions and reads all of them; ForwardContext::positions gives the new ones. The first forward
/// allocates the whole context. Use it under no_grad, with a batch size that stays the same until clear(). A forward
/// that throws leaves the layers at different lengths: call truncate() or clear().
class KvCache {
 public:
  /// `model` outlives the cache.
  KvCache(Module& model, int64_t context);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int64_t context() const noexcept { return context_; }
  /// Number of positions that every layer has cached.
  int64_t length() const noexcept;
  /// The positions of the next `count` tokens, for ForwardContext::positions.
  at::Tensor positions(int64_t count) const;
  /// truncate drops all positions from `length` on (a rejected draft, another continuation); clear drops all.
  void truncate(int64_t length);
  void clear() { slots_.clear(); }

 private:
  struct Slot {
    int64_t length = 0;
    at::Tensor key;    ///< [batch, heads, context, width]
    at::Tensor value;  ///< the same
  };
  Tensors append(const std::string& name, const Tensors& inputs);

  int64_t context_;
  std::map<std::string, Slot> slots_;
  std::vector<Hook> hooks_;
};

}  // namespace caravan
