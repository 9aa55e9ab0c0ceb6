#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "caravan/data/windows/sampler.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"

namespace caravan {

struct Evaluation {
  double loss = 0;           ///< nats per target token
  double bits_per_byte = 0;  ///< bits per UTF-8 byte of the text: comparable between tokenizers
};

struct EvaluationOptions {
  int64_t rows = 1;                           ///< windows of one forward pass
  int64_t max_windows = 0;                    ///< windows to evaluate in total, evenly spread over the text; 0: every
                                              ///< window
  std::function<bool()> stop_requested = {};  ///< empty: never
  std::function<void(int64_t done, int64_t total)> progress = {};  ///< called after rounds of forward passes; may be
                                                                   ///< empty
};

/// The part of each round of windows that this rank evaluates, and who takes part.
struct EvaluationPart {
  Communicator& world;
  int64_t part = 0;
  int64_t num_parts = 1;
  bool counts = true;      ///< only one of the ranks that compute the same loss counts
  int rounds_at_once = 1;  ///< rounds after which all ranks agree on whether to stop
  int64_t row_parts = 1;   ///< the windows of a forward pass are padded to a multiple of this
};

/// This rank's summand of the loss of a batch; 0 if another rank holds it. The context is that of an evaluation, with
/// the batch's positions and documents.
using LossOf = std::function<double(const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context)>;

/// Throws DataError unless some token of the windows that evaluate() takes (max_windows of them; 0: all) is a target.
/// Call it before a run, so that the run does not fail at its first evaluation. Reads up to the first such window.
void check_targets(const ValidationWindows& windows, int64_t max_windows);

/// The loss over `windows`, split over the parts. Every rank of the world calls it with equal sizes, calls `loss`
/// equally often, and gets the same bits. Returns nothing if stop_requested() was true on any rank, which is checked
/// every EvaluationPart::rounds_at_once rounds. For a part of the windows, bits_per_byte assumes the average bytes per
/// token of the whole text. Sends 8 bytes each time, and 16.
std::optional<Evaluation> evaluate(const LossOf& loss, const ValidationWindows& windows, const EvaluationPart& part,
                                   const EvaluationOptions& options);

/// The same for the engine's model: run({ids, labels}) -> {loss}.
std::optional<Evaluation> evaluate(Engine& engine, const ValidationWindows& windows, const EvaluationOptions& options);

/// The same for a model that every rank of `world` has whole.
std::optional<Evaluation> evaluate(Model& model, Communicator& world, const ValidationWindows& windows,
                                   const EvaluationOptions& options);

}  // namespace caravan
