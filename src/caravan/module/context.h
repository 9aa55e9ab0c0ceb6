#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/module/plan/dim_index.h"

namespace caravan {

class LayoutTable;

/// The dims of a model's activations that a layout may shard.
enum class Dim : uint8_t { batch, sequence, feature, head, hidden };
inline constexpr int kNumDims = 5;

/// Why a forward pass runs.
enum class Phase : uint8_t {
  forward,    ///< of training
  recompute,  ///< of training, again, in backward
  evaluate,   ///< no dropout
  generate,   ///< the same, of a text that grows: techniques that split sequences leave them whole
};

/// What a forward pass knows beyond its tensors. Layers take global indices and positions from here, never from local
/// indices, so the same model computes the same numbers under every layout.
struct ForwardContext {
  uint64_t seed = 0;  ///< of the run; with `step` it keys every random number (base/numeric/random.h)
  int64_t step = 0;
  int micro_batch = 0;
  Phase phase = Phase::forward;
  /// The loss is the sum over target tokens times this: 1 / (target tokens of the whole global batch of the step). The
  /// one owner of the loss's normalisation.
  double loss_scale = 1;
  /// What all gradients of the step are multiplied by (fp16); loss_scale has it.
  double gradient_scale = 1;

  /// Token positions, int64 [sequence] or [batch, sequence], of the tokens that the activations here stand for. They
  /// come with the data. Undefined: 0, 1, .. along the sequence. For RoPE and positional embeddings.
  at::Tensor positions{};
  /// Document ids of a packed batch, int64 [batch, sequence]: attention stays within a document. Undefined: one each.
  at::Tensor documents{};

  /// Which elements of the global activations the local ones are; for random numbers only. `data`: as the batch is
  /// split over data axes; `index`: of the activations of the module at hand, which a tensor technique may have split
  /// further or gathered.
  std::array<DimIndex, kNumDims> data{};
  std::array<DimIndex, kNumDims> index{};

  /// Of a dry run: layers record the layouts of their results here (module/plan/layout_table.h).
  LayoutTable* layouts = nullptr;

  bool is_training() const noexcept { return phase == Phase::forward || phase == Phase::recompute; }
  const DimIndex& operator[](Dim dim) const noexcept { return index[static_cast<size_t>(dim)]; }
  /// Sets both data and index.
  void set(Dim dim, const DimIndex& which) { data[static_cast<size_t>(dim)] = index[static_cast<size_t>(dim)] = which; }
  void set_index(Dim dim, DimIndex which) { index[static_cast<size_t>(dim)] = std::move(which); }
};

}  // namespace caravan
