#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Keys and values of earlier positions, for generation. With ForwardContext::cache set, attention appends the new
/// positions and reads all of them, and positions continue after the cached ones. The first append allocates the whole
/// context. Use it under no_grad, with a batch size that stays the same until clear(). A forward that throws leaves the
/// layers at different lengths: call truncate() or clear().
class KvCache {
 public:
  explicit KvCache(int64_t context) : context_(context) {}

  int64_t context() const noexcept { return context_; }
  /// Number of positions that every layer has cached.
  int64_t length() const noexcept;
  /// truncate drops all positions from `length` on (a rejected draft, another continuation); clear drops all.
  void truncate(int64_t length);
  void clear() { slots_.clear(); }

  /// For layers: the number of positions of layer `name`. advance adds `count` and returns the number before.
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
