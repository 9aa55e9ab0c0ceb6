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

  /// Of causal() and up_to(), before or after within_documents: those of the last `window` keys up to the query's own,
  /// its own included.
  VisibleKeys within_window(int64_t window) const;
  /// Of any: those at the last `window` positions up to the query's own. For keys that are pieces of a sequence: int64
  /// [queries] and [keys]; those of keys ascend.
  VisibleKeys within_window(int64_t window, const at::Tensor& of_queries, const at::Tensor& of_keys) const;

  /// Of a query at most so many keys are seen; 0: all.
  int64_t window() const noexcept { return window_; }
  /// Whether they are those of causal(), perhaps within documents or a window.
  bool is_causal() const noexcept { return is_causal_; }
  bool is_all() const noexcept { return !is_causal_ && !has_ranges(); }
  /// Whether they are other than those of all() and causal().
  bool is_masked() const noexcept { return has_ranges() || window_ > 0; }
  /// Whether no query sees any key. False on the meta device.
  bool is_nothing() const;
  /// Whether every query sees each of `keys`. False on the meta device unless is_all().
  bool is_everything(int64_t keys) const;

  struct Range {
    int32_t first, end;  ///< empty if first >= end
  };
  /// From the first of `keys` that a query of a sequence sees to behind the last. Not for meta tensors.
  Range range(int64_t row, int64_t query, int64_t keys) const {
    Range range;
    ranges(row, query, 1, keys, &range.first, &range.end);
    return range;
  }
  /// The same for `count` queries, from `query` on.
  void ranges(int64_t row, int64_t query, int64_t count, int64_t keys, int32_t* first, int32_t* end) const;
  /// For how many sequences the ranges differ: 1 or batch.
  int64_t num_rows() const { return has_ranges() ? bounds_.size(0) : 1; }
  /// Undefined unless a document has keys of another between its own: then a query sees, within its range, the keys
  /// with its number. int32 [batch, queries] and [batch, keys].
  const at::Tensor& query_documents() const noexcept { return query_documents_; }
  const at::Tensor& key_documents() const noexcept { return key_documents_; }

  /// True where a query sees a key, bool [1 or batch, 1, queries, keys], on the device of `like`.
  at::Tensor mask(int64_t queries, int64_t keys, const at::Tensor& like) const;

  /// The tensors of it, to save for backward, and back.
  std::array<at::Tensor, 3> saved() const { return {bounds_, query_documents_, key_documents_}; }
  static VisibleKeys restored(bool is_causal, int64_t window, const std::array<at::Tensor, 3>& saved);

 private:
  explicit VisibleKeys(bool is_causal, at::Tensor bounds = {}) : is_causal_(is_causal), bounds_(std::move(bounds)) {}
  bool has_ranges() const noexcept { return bounds_.defined(); }

  /// With bounds: no keys of query i before first_of(i).
  template <class FirstOf>
  VisibleKeys from_first(int64_t window, int64_t queries, int64_t keys, const FirstOf& first_of) const;

  bool is_causal_;
  int64_t window_ = 0;  ///< in the bounds, if there are any
  at::Tensor last_;     ///< of up_to, int64 on the CPU or meta
  /// int32 on the CPU (or meta) [1 or batch, 2, queries]: the first key of each query and the one behind its last.
  at::Tensor bounds_;
  at::Tensor query_documents_, key_documents_;
};

}  // namespace caravan
