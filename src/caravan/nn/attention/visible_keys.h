#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Which keys each query of an attention sees: all, those up to its own, or a range of its own.
class VisibleKeys {
 public:
  static VisibleKeys all() { return VisibleKeys(false); }
  /// Query i sees the keys 0 .. i; there are as many keys as queries.
  static VisibleKeys causal() { return VisibleKeys(true); }
  /// Query i sees the keys 0 .. last[i]: int64 [queries].
  static VisibleKeys up_to(const at::Tensor& last);

  /// Those of them that are of the query's own document. `of_queries` and `of_keys`, integers [batch, queries] and
  /// [batch, keys], say which document a token is of. Values are read: documents on an accelerator are copied.
  VisibleKeys within_documents(const at::Tensor& of_queries, const at::Tensor& of_keys) const;

  /// Whether they are those of causal(), perhaps within documents.
  bool is_causal() const noexcept { return is_causal_; }
  bool is_all() const noexcept { return !is_causal_ && !has_ranges(); }
  /// Whether each query has a range of its own: bounds() is defined.
  bool has_ranges() const noexcept { return bounds_.defined(); }
  /// Whether no query sees any key. False on the meta device.
  bool is_nothing() const;
  /// Whether every query sees each of `keys`. False on the meta device unless is_all().
  bool is_everything(int64_t keys) const;

  /// int32 on the CPU (or meta) [1 or batch, 2, queries]: the first key of each query and the one behind its last.
  const at::Tensor& bounds() const noexcept { return bounds_; }
  /// Undefined unless a document has keys of another between its own: then a query sees, within its bounds, the keys
  /// with its number. int32 [batch, queries] and [batch, keys].
  const at::Tensor& query_documents() const noexcept { return query_documents_; }
  const at::Tensor& key_documents() const noexcept { return key_documents_; }

  /// True where a query sees a key, bool [1 or batch, 1, queries, keys], on the device of `like`.
  at::Tensor mask(int64_t queries, int64_t keys, const at::Tensor& like) const;

  /// The tensors of it, to save for backward, and back.
  std::array<at::Tensor, 3> saved() const { return {bounds_, query_documents_, key_documents_}; }
  static VisibleKeys restored(bool is_causal, const std::array<at::Tensor, 3>& saved);

 private:
  explicit VisibleKeys(bool is_causal, at::Tensor bounds = {}) : is_causal_(is_causal), bounds_(std::move(bounds)) {}

  bool is_causal_;
  at::Tensor bounds_;
  at::Tensor query_documents_, key_documents_;
};

}  // namespace caravan
