#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/engine.h"
#include "caravan/models/model.h"

namespace caravan {

/// The most likely token or class at each target of a batch: int64, in the order of the targets, row by row. Undefined
/// on a rank that does not hold them, or if another rank counts them.
using PredictionsOf =
    std::function<at::Tensor(const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context)>;

/// The predictions of a model: one more forward pass, without labels, whose head computes the targets alone: its stream
/// [rows, length, width] becomes [rows, most targets of a row, width]. `context` is that of an evaluation; the pass is
/// one of Phase::generate, in which sequences are whole. The model outlives the result.
PredictionsOf predictions_of(Model& model);
/// The same by an engine, of its model's last block. Every rank calls the result, between begin_evaluation() and
/// end_evaluation(). Ranks that have the same rows and hold the same logits: one of them gets predictions.
PredictionsOf predictions_of(Engine& engine);

/// How many predictions are right.
class PredictionCounts {
 public:
  /// `num_classes`: of the labels, for F1; 0: none.
  explicit PredictionCounts(int64_t num_classes) : num_classes_(num_classes), counts_(2 + 3 * num_classes) {}

  /// `labels` of a batch, and the predictions of its targets.
  void add(const at::Tensor& labels, const at::Tensor& predictions);
  /// Sums over all ranks; each of them calls it.
  void sum_over(Communicator& world);

  double accuracy() const;
  /// The mean over classes of 2 tp / (2 tp + fp + fn), of those that labels or predictions have: f1_score of
  /// scikit-learn with average="macro", for two classes too. Nothing without classes.
  std::optional<double> macro_f1() const;

 private:
  int64_t& of_class(int64_t kind, int64_t label);

  int64_t num_classes_;
  std::vector<int64_t> counts_;  ///< targets, right ones; then of each class: right, predicted, and labels
};

}  // namespace caravan
