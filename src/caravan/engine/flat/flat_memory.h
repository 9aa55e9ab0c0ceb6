#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace caravan {

/// A flat buffer of a model (engine/flat/flat.h) whose memory may be in pieces: where the parameters of a bucket rest inside
/// a larger buffer, such as that of their leaves, their piece is a view of it. Elements between pieces have no memory.
class FlatMemory {
 public:
  FlatMemory() = default;
  /// One piece at offset 0.
  explicit FlatMemory(at::Tensor all) : FlatMemory(all.options()) { add(0, std::move(all)); }
  /// No piece yet; all will be of these options.
  explicit FlatMemory(at::TensorOptions options) : options_(options) {}

  struct Piece {
    int64_t offset = 0;
    at::Tensor memory;  ///< flat, contiguous
  };
  /// Pieces come in the order of their offsets.
  void add(int64_t offset, at::Tensor memory);
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }

  /// A view, as of a tensor. Throws InternalError for elements that do not lie in one piece.
  at::Tensor narrow(int64_t offset, int64_t count) const;
  /// Whether elements from `offset` on have memory.
  bool has(int64_t offset) const noexcept { return find(offset) != nullptr; }

  bool defined() const noexcept { return !pieces_.empty(); }
  bool is_meta() const noexcept { return options_.device().is_meta(); }
  at::ScalarType scalar_type() const noexcept { return c10::typeMetaToScalarType(options_.dtype()); }
  const at::TensorOptions& options() const noexcept { return options_; }
  /// The elements that have memory, one piece after another.
  at::Tensor to_tensor() const;

 private:
  const Piece* find(int64_t offset) const noexcept;

  at::TensorOptions options_;
  std::vector<Piece> pieces_;
};

}  // namespace caravan
