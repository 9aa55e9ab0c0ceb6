#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "caravan/module/plan/dim_index.h"

namespace caravan {

class LayoutTable;
struct PreferencePass;

/// The dims of a model's activations that a layout may shard.
enum class Dim : uint8_t { batch, sequence, feature, head, hidden };
inline constexpr int kNumDims = 5;

/// The purpose of a forward pass.
enum class Phase : uint8_t {
  forward,    ///< for training
  recompute,  ///< a repeated forward, in backward
  evaluate,   ///< no dropout
  generate,   ///< the same, for a growing text: techniques that split sequences leave them whole
};

/// What a forward pass knows besides its tensors. Layers take global indices and positions from here, never from local
/// indices, so the same model computes the same numbers under every layout.
struct ForwardContext {
  uint64_t seed = 0;  ///< seed of the run; with `step` it keys every random number (base/numeric/random.h)
  int64_t step = 0;
  int micro_batch = 0;
  Phase phase = Phase::forward;
  /// The loss is the sum over target tokens times this: 1 / (target tokens of the whole global batch of the step).
  /// Nothing else normalises the loss.
  double loss_scale = 1;
  /// Factor of all gradients of the step (fp16); included in loss_scale.
  double gradient_scale = 1;

  /// Positions, int64 [sequence] or [batch, sequence], of the tokens of the local activations. They come with the data.
  /// Undefined: 0, 1, .. along the sequence. For RoPE and positional embeddings.
  at::Tensor positions{};
  /// Document ids of a packed batch, int64 [batch, sequence]: attention stays within a document. Undefined: each row is
  /// one document.
  at::Tensor documents{};
  /// Types of the tokens, like documents, for models that have them (ModelConfig::token_types). Undefined: all 0.
  at::Tensor token_types{};
  /// For models with an encoder: the tokens at the front of each row that are its source; -1: the whole source_context
  /// of the model. In a generation the rows that follow the first ones have none.
  int64_t sources = -1;
  /// The batch has pairs of sequences, of which one is preferred (nn/loss/preference_loss.h); null: it has not.
  std::shared_ptr<const PreferencePass> preference{};
  /// The model computes without its adapters: with the weights under them.
  bool leaves_out_adapters = false;
  /// In layers that attend to an encoder's states: documents of the source, where `documents` are those of the target.
  at::Tensor source_documents{};

  /// The global elements that the local activations are; for random numbers only. `data`: as the batch is split over
  /// data axes; `index`: for the activations of the current module, which a tensor technique may have split further or
  /// gathered.
  std::array<DimIndex, kNumDims> data{};
  std::array<DimIndex, kNumDims> index{};

  /// In a dry run, layers record the layouts of their results here (module/plan/layout_table.h).
  LayoutTable* layouts = nullptr;

  bool is_training() const noexcept { return phase == Phase::forward || phase == Phase::recompute; }
  const DimIndex& operator[](Dim dim) const noexcept { return index[static_cast<size_t>(dim)]; }
  /// Sets both data and index.
  void set(Dim dim, const DimIndex& which) { data[static_cast<size_t>(dim)] = index[static_cast<size_t>(dim)] = which; }
  void set_index(Dim dim, DimIndex which) { index[static_cast<size_t>(dim)] = std::move(which); }
};

}  // namespace caravan
