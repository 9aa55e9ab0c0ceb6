#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/memory/tiers.h"

namespace caravan {

/// A flat buffer of a model (engine/flat/flat.h) whose memory may be in pieces: where the sharded parameters of a
/// bucket are inside a larger buffer, such as the unsharded one, their piece is a view of it. Elements between pieces
/// have no memory. A piece may rest on host or disk.
class FlatMemory {
 public:
  FlatMemory() = default;
  /// One piece at offset 0.
  explicit FlatMemory(at::Tensor all) : FlatMemory(all.options()) { add(0, std::move(all)); }
  /// Starts without pieces; all pieces will have these options.
  explicit FlatMemory(at::TensorOptions options) : options_(options) {}

  struct Piece {
    int64_t offset = 0;
    at::Tensor memory;                   ///< flat, contiguous; undefined on disk
    std::shared_ptr<TierBlock> block{};  ///< on host and disk
    int64_t count = 0;
    Event use{};  ///< of other threads: see set_use
  };
  /// Pieces are added in the order of their offsets.
  void add(int64_t offset, at::Tensor memory);
  /// A piece of `count` elements on host or disk.
  void add(int64_t offset, int64_t count, Tier tier, const std::shared_ptr<Tiers>& tiers);
  /// Waits for every use.
  const std::vector<Piece>& pieces() const;
  /// The piece with these elements, after its use. Throws InternalError if they are not in one.
  const Piece& piece(int64_t offset, int64_t count) const;
  /// The same before the end of its use: for work that runs after it.
  const Piece& piece_in_use(int64_t offset, int64_t count) const;
  /// Another thread works with the piece at `offset`, if it has memory, until `use` is complete: whoever asks for its
  /// elements here waits, and gets the error of that thread. Views taken before do not wait.
  void set_use(int64_t offset, const Event& use);
  /// Waits for the use of the piece at `offset`, if it has memory.
  void wait(int64_t offset) const;
  /// Where pieces rest: all on one tier.
  Tier tier() const noexcept { return tier_; }
  bool is_on_disk() const noexcept { return tier_ == Tier::disk; }

  /// A view, as Tensor::narrow. Throws InternalError for elements that are not in one piece, or on disk.
  at::Tensor narrow(int64_t offset, int64_t count) const;
  /// The elements, as Tensor::narrow, or read from disk.
  at::Tensor read(int64_t offset, int64_t count) const;
  /// Elements that are moved at a time: whole pages of a disk.
  static constexpr int64_t kPart = int64_t{1} << 20;
  /// Calls f(offset, count) for parts of at most kPart elements.
  template <class F>
  static void for_each_part(int64_t offset, int64_t count, const F& f) {
    for (int64_t done = 0; done < count; done += kPart) f(offset + done, std::min(kPart, count - done));
  }
  /// Writes `from` to the elements from `offset` on.
  void write(int64_t offset, const at::Tensor& from) const;
  /// Whether elements from `offset` on have memory.
  bool has(int64_t offset) const noexcept { return find(offset) != nullptr; }

  bool defined() const noexcept { return !pieces_.empty(); }
  bool is_meta() const noexcept { return options_.device().is_meta(); }
  at::ScalarType scalar_type() const noexcept { return c10::typeMetaToScalarType(options_.dtype()); }
  const at::TensorOptions& options() const noexcept { return options_; }
  /// Sum of torch's version counters of the pieces in memory; bump_version() raises each.
  int64_t version() const;
  void bump_version() const;
  /// Concatenates the elements that have memory.
  at::Tensor to_tensor() const;

 private:
  const Piece* find(int64_t offset) const noexcept;
  static void wait(const Piece& piece);
  void move(const Piece& piece, int64_t first, at::Tensor elements, bool writes) const;

  at::TensorOptions options_;
  Tier tier_ = Tier::device;
  std::shared_ptr<Tiers> tiers_;  ///< outlives the pieces
  std::vector<Piece> pieces_;
};

/// A tensor on a separate storage that has no memory.
at::Tensor without_memory(const std::vector<int64_t>& shape, at::TensorOptions options);
/// The same; reading it throws `reason`, unless it is a meta tensor.
at::Tensor without_memory(const std::vector<int64_t>& shape, at::TensorOptions options, const std::string& reason);
/// Takes the memory of such a tensor away; then reading it throws `reason`.
void take_away(const at::Tensor& tensor, const std::string& reason);

}  // namespace caravan
