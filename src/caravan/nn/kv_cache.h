#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

namespace caravan {

/// The keys and values of generation: put into ForwardContext::cache, attention appends those of the new positions and
/// reads all, and positions go on where the cached ones end. Room for the whole context is made at the first append.
/// Runs under no_grad, for a batch of any size that stays the same until clear(). A forward that throws leaves the
/// layers at different lengths: truncate() or clear() mends it.
class KvCache {
 public:
  explicit KvCache(int64_t context) : context_(context) {}

  int64_t context() const noexcept { return context_; }
  /// Positions that every layer has.
  int64_t length() const noexcept;
  /// Forgets all positions from `length` on (a rejected draft, another continuation), or all.
  void truncate(int64_t length);
  void clear() { slots_.clear(); }

  /// For layers. Positions that layer `name` has had; advance adds `count` and returns what there were before.
  int64_t length(const std::string& name) const;
  int64_t advance(const std::string& name, int64_t count);
  /// Appends keys and values [batch, count, heads, width] of layer `name`; returns those of all its positions, views of
  /// [batch, length, heads, width].
  std::pair<at::Tensor, at::Tensor> append(const std::string& name, const at::Tensor& key, const at::Tensor& value);

 private:
  struct Slot {
    int64_t length = 0;
    at::Tensor key;    ///< [batch, heads, context, width]
    at::Tensor value;  ///< the same
  };
  int64_t context_;
  std::map<std::string, Slot> slots_;
};

}  // namespace caravan
