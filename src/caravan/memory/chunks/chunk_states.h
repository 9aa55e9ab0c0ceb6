#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "caravan/memory/chunks/chunk_layout.h"

namespace caravan {

/// State of a tensor in a chunk, and of the chunk, which follows from those of its tensors.
enum class ChunkState : uint8_t {
  free,                 ///< has no contents
  compute,              ///< in use where it computes: its chunk must not move
  hold,                 ///< has contents that may move, but must be kept
  hold_after_forward,   ///< the same; its forward of this step is over
  hold_after_backward,  ///< the contents are its gradient, which has replaced the parameter
  release,              ///< of a chunk: has no memory on this rank. Its tensors are free
};
inline constexpr size_t kNumChunkStates = 6;
/// "free", "compute", "hold", "hold after forward", "hold after backward", "release"
std::string_view name(ChunkState state) noexcept;

enum class ChunkPhase : uint8_t { forward, backward, update };
/// "forward", "backward", "update"
std::string_view name(ChunkPhase phase) noexcept;

/// A legal change of a tensor's state; everything that is not in the table is refused.
struct ChunkTransition {
  ChunkState from = ChunkState::free;
  ChunkState to = ChunkState::free;
  bool in_forward = false;
  bool in_backward = false;
  bool in_update = false;
  bool is_in(ChunkPhase phase) const noexcept;
};
std::span<const ChunkTransition> chunk_transitions() noexcept;

/// The states of one rank's chunks during a step: forward, backward, update, forward .. Gradients replace parameters:
/// after its backward a tensor's place in the chunk holds its gradient, until the update writes the new parameter. So a
/// tensor that several units use, or a second micro-batch, does not fit: the table refuses its second backward.
///
/// Across ranks, the chunks of a group (ChunkLayout::group) are gathered together. Those that are at home elsewhere are
/// released as soon as all tensors of the group hold after forward, and after the reduce-scatter of the group, which
/// is due when all hold after backward. The chunk at home then keeps the sums.
class ChunkStates {
 public:
  /// All chunks are released. Throws UsageError if there is no such rank.
  explicit ChunkStates(ChunkLayout layout, int rank = 0);

  const ChunkLayout& layout() const noexcept { return layout_; }
  ChunkPhase phase() const noexcept { return phase_; }
  ChunkState tensor(int index) const { return tensors_.at(static_cast<size_t>(index)); }
  /// release without memory; compute if any tensor computes; else free if all are free; else hold after forward or
  /// backward if all tensors that are not free do; else hold.
  ChunkState chunk(int index) const;
  bool is_at_home(int chunk) const noexcept { return layout_.home(chunk) == rank_; }

  /// Throws UsageError, naming tensor, chunk, both states and the phase, if the table does not have the change or the
  /// chunk has no memory. The states stay as they were.
  void set(int tensor, ChunkState to);
  /// Forward to backward: what holds after forward holds. Backward to update; update to forward. Throws UsageError,
  /// naming a tensor, if one computes, or if one still holds its gradient when a forward is to begin.
  void begin(ChunkPhase phase);

  /// Gives a released chunk memory; its tensors are free. Throws UsageError if it has memory.
  void claim(int chunk);
  /// Takes the memory. Throws UsageError, naming the tensor, if may_release() does not hold.
  void release(int chunk);

  /// Whether the contents may be moved to another tier: it has memory and no tensor computes.
  bool may_evict(int chunk) const;
  /// Whether nothing is lost with the memory: all tensors are free; or the chunk is at home on another rank and all
  /// tensors in the group's memory hold after forward (in a forward) or hold after backward (in a backward).
  bool may_release(int chunk) const;
  /// Whether the gradients of a group are complete: all tensors in its memory hold after backward.
  bool is_reduce_due(int group) const;

 private:
  int blocking_tensor(int chunk) const;
  bool all_hold(int group, ChunkState state) const;
  [[noreturn]] void refuse(int tensor, ChunkState to, std::string_view fact) const;

  ChunkLayout layout_;
  int rank_ = 0;
  ChunkPhase phase_ = ChunkPhase::forward;
  std::vector<ChunkState> tensors_;
  std::vector<bool> has_memory_;              ///< by chunk
  std::vector<std::vector<int>> tensors_of_;  ///< by chunk
};

}  // namespace caravan
