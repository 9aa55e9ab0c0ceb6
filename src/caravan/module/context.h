#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace caravan {

/// The dims of a model's activations that a layout may cut.
enum class Dim : uint8_t { batch, sequence, feature, head, hidden };
inline constexpr int kNumDims = 5;

/// The piece of a dim that this rank computes: `offset` is the global index of its first element; `global` the whole
/// size, 0 if the local size is the whole.
struct Piece {
  int64_t offset = 0;
  int64_t global = 0;
};

class KvCache;

/// What a forward pass knows beyond its tensors. Layers take global positions from here (dropout, positional
/// embeddings, masks), never from local indices, so the same model computes the same numbers under every layout.
struct ForwardContext {
  uint64_t seed = 0;  ///< of the run; with `step` it keys every random number (nn/random.h)
  int64_t step = 0;
  bool training = true;
  /// The loss is the sum over target tokens times this: 1 / (target tokens of the whole global batch of the step). The
  /// one owner of the loss's normalisation.
  double loss_scale = 1;
  std::array<Piece, kNumDims> pieces{};
  KvCache* cache = nullptr;  ///< of generation: attention appends its keys and values and reads all earlier ones

  Piece& operator[](Dim dim) noexcept { return pieces[static_cast<size_t>(dim)]; }
  const Piece& operator[](Dim dim) const noexcept { return pieces[static_cast<size_t>(dim)]; }
  /// Global index of element `local` of `dim`, and the global size of a dim that is `local_size` here.
  int64_t offset(Dim dim) const noexcept { return (*this)[dim].offset; }
  int64_t global(Dim dim, int64_t local_size) const noexcept {
    return (*this)[dim].global > 0 ? (*this)[dim].global : local_size;
  }
};

}  // namespace caravan
