#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/engine.h"
#include "caravan/models/model.h"

namespace caravan {

/// A model for generation: on one rank, or on many that run it together.
struct TextModel {
  /// Whether to stop, asked before each pass; if it is true on some rank, every rank throws Interrupted. Empty: never.
  using ShouldStop = std::function<bool()>;
  /// The model on this rank alone.
  TextModel(Model& model, ShouldStop should_stop = {});  // NOLINT: a model is a text model
  /// The model as run by the engine: every rank generates, with the same arguments, and all get the same tokens.
  explicit TextModel(Engine& engine, ShouldStop should_stop = {});

  Model& model;
  /// Logits of the `last` last positions of `ids` [texts, positions]: [texts, last, vocabulary]; undefined on a rank
  /// that does not hold them. `ends`: how many positions each text has; {}: all. The bits of those of a text depend on
  /// no other.
  at::Tensor logits(const at::Tensor& ids, const ForwardContext& context, int64_t last = 1,
                    std::vector<int64_t> ends = {}) const;

  /// What the ranks agree on, of each text: the largest token (a rank without logits gives -1), its probability, and
  /// whether any of them stops.
  struct Choice {
    int64_t token = -1;
    bool stops = false;
    double log_probability = -std::numeric_limits<double>::infinity();  ///< the same on all ranks with logits
  };
  std::function<std::vector<Choice>(std::vector<Choice> own)> agree;

  enum class Part : uint8_t {
    last,    ///< logits of the last positions
    logits,  ///< those of all positions
    states,  ///< what the last layer returns, normed as the model has it
  };
  /// What the head computes.
  struct Wanted {
    Part part = Part::last;
    int64_t last = 1;  ///< positions
    std::vector<int64_t> ends{};
  };
  /// Logits or states of all tokens of one text, `ids` [1, tokens]: [tokens, features] in fp32, the same on every rank.
  /// Every rank calls it.
  at::Tensor output(const at::Tensor& ids, const ForwardContext& context, Part part) const;

 private:
  at::Tensor run(const at::Tensor& ids, const ForwardContext& context) const;

  std::function<at::Tensor(const at::Tensor& ids, const ForwardContext& context)> run_;
  std::function<bool()> should_stop_;                       ///< of all ranks; empty: never
  std::function<at::Tensor(const at::Tensor& own)> share_;  ///< of the ranks that have it, to all
  std::shared_ptr<Wanted> wanted_;
  std::shared_ptr<void> evaluation_;  ///< of the engine, as long as this lives
  std::shared_ptr<Hook> at_head_;
};

}  // namespace caravan
