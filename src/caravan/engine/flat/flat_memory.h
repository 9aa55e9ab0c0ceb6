#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace caravan {

/// A flat buffer of a model (engine/flat/flat.h) whose memory may be in pieces: where the sharded parameters of a
/// bucket are inside a larger buffer, such as the unsharded one, their piece is a view of it. Elements between pieces
/// have no memory.
class FlatMemory {
 public:
  FlatMemory() = default;
  /// One piece at offset 0.
  explicit FlatMemory(at::Tensor all) : FlatMemory(all.options()) { add(0, std::move(all)); }
  /// Starts without pieces; all pieces will have these options.
  explicit FlatMemory(at::TensorOptions options) : options_(options) {}

  struct Piece {
    int64_t offset = 0;
    at::Tensor memory;  ///< flat, contiguous
  };
  /// Pieces are added in the order of their offsets.
  void add(int64_t offset, at::Tensor memory);
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }

  /// A view, as Tensor::narrow. Throws InternalError for elements that are not in one piece.
  at::Tensor narrow(int64_t offset, int64_t count) const;
  /// Whether elements from `offset` on have memory.
  bool has(int64_t offset) const noexcept { return find(offset) != nullptr; }

  bool defined() const noexcept { return !pieces_.empty(); }
  bool is_meta() const noexcept { return options_.device().is_meta(); }
  at::ScalarType scalar_type() const noexcept { return c10::typeMetaToScalarType(options_.dtype()); }
  const at::TensorOptions& options() const noexcept { return options_; }
  /// Concatenates the elements that have memory.
  at::Tensor to_tensor() const;

 private:
  const Piece* find(int64_t offset) const noexcept;

  at::TensorOptions options_;
  std::vector<Piece> pieces_;
};

}  // namespace caravan
