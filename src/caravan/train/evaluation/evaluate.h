#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/train/evaluation/predictions.h"

namespace caravan {

class StageRunner;

struct Evaluation {
  double loss = 0;                   ///< nats per target token
  double bits_per_byte = 0;          ///< bits per UTF-8 byte of the text: comparable between tokenizers; 0: the
                                     ///< targets are not the tokens of a text (ValidationRows::text_bytes)
  std::optional<double> accuracy{};  ///< the part of the targets that the model finds most likely; if asked for
  std::optional<double> macro_f1{};  ///< with classes: see PredictionCounts::macro_f1
};

struct EvaluationOptions {
  int64_t rows = 1;                           ///< windows of one forward pass
  int64_t max_windows = 0;                    ///< windows to evaluate in total, evenly spread over the text; 0: every
                                              ///< window
  bool counts_rows = false;                   ///< the loss is a mean over rows with a target, not over targets
  bool has_accuracy = false;                  ///< also the accuracy: a second forward pass
  int64_t num_classes = 0;                    ///< with it, of labels that are classes: also F1
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
/// what the rows have beside ids and labels.
using LossOf = std::function<double(const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context)>;

/// Throws DataError unless some token of the windows that evaluate() takes (max_windows of them; 0: all) is a target.
/// Call it before a run, so that the run does not fail at its first evaluation. Reads up to the first such window.
void check_targets(const ValidationRows& rows, int64_t max_windows);

/// The loss over `rows`, split over the parts. Every rank of the world calls it with equal sizes, calls `loss`
/// equally often, and gets the same bits. Returns nothing if stop_requested() was true on any rank, which is checked
/// every EvaluationPart::rounds_at_once rounds. `predict`: empty without EvaluationOptions::has_accuracy. For a part
/// of the rows, bits_per_byte assumes the average bytes per token of the whole text. Sends 8 bytes each time, and 16.
std::optional<Evaluation> evaluate(const LossOf& loss, const ValidationRows& rows, const EvaluationPart& part,
                                   const EvaluationOptions& options, const PredictionsOf& predict = {});

/// The same for the engine's model: run({ids, labels}) -> {loss}, or what `pass` returns for a batch, with this runner
/// of the engine: this rank's part of the loss, undefined on ranks without the last stage.
using LossPass = std::function<at::Tensor(StageRunner& runner, const at::Tensor& ids, const at::Tensor& labels,
                                          const ForwardContext& context)>;
std::optional<Evaluation> evaluate(Engine& engine, const ValidationRows& rows, const EvaluationOptions& options,
                                   const LossPass& pass = {});

/// The same for a model that every rank of `world` has whole.
std::optional<Evaluation> evaluate(Model& model, Communicator& world, const ValidationRows& rows,
                                   const EvaluationOptions& options);

}  // namespace caravan
