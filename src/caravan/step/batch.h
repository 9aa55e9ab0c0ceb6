#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/stages/stage_runner.h"
#include "caravan/mesh/mesh.h"
#include "caravan/nn/loss/preference_loss.h"
#include "caravan/schedule/row_deal.h"

namespace caravan {

class TaskRows;
struct RowBuffers;
struct RowShape;

/// The batch of a step, or a box of it: the part of one rank, as Strategy::batch_layout lays it out, or a deal.
struct TrainBatch {
  at::Tensor ids;     ///< [rows, context] int64
  at::Tensor labels;  ///< the same; labels[b, t] is the target of ids[b, t], kIgnoredLabel for none
  int64_t first_row = 0;
  int64_t global_rows = 0;
  int64_t num_targets = 0;  ///< targets of the whole global batch: the divisor of the loss
  int64_t mean_rows = 0;    ///< rows that losses are averaged over; 0: global_rows
  int64_t unit = 0;         ///< micro-batches differ by at most this many rows (RowDeal::unit); 0: they are equal
  /// For packed documents, like ids: see ForwardContext. Undefined: every row is one document, from position 0 on.
  at::Tensor positions{};
  at::Tensor documents{};
  at::Tensor token_types{};  ///< of pairs of texts, like ids; undefined: all 0
  int64_t sequences = 1;     ///< of a row, which the model reads apart (RowShape::num_sequences)
  /// Of rows of two sequences; `reference` is [rows, 2] here. Nothing: the loss is that of tokens.
  std::optional<PreferencePass> preference{};

  /// The defined tensors, which are cut, sent and copied alike.
  std::vector<at::Tensor*> tensors();
};

/// Of so many rows, not filled, and what to fill them by.
TrainBatch empty_batch(const RowShape& shape, int64_t rows, at::DeviceType device = at::kCPU);
RowBuffers buffers_of(TrainBatch& batch);
/// What the rows have beside ids and labels.
void set_tokens(ForwardContext& context, const TrainBatch& batch);

/// Makes rows of the training data: row r is sample first_sample + r.
TrainBatch make_batch(const TaskRows& source, int64_t first_sample, int64_t rows);

/// Source of the rows of a batch.
struct RowSource {
  int64_t context = 0;  ///< tokens in a row
  std::function<TrainBatch(int64_t first_sample, int64_t rows)> make;
  std::function<int64_t(int64_t first_sample, int64_t rows)> num_targets;
};

/// Makes this rank's piece of the `global_rows` rows of a step, by Strategy::batch_layout, whose data axis has the rows
/// of `deal`. Every rank of the mesh calls it with the same deal and reads its own rows only; with
/// Strategy::controller_axis, the first rank reads all rows and sends the others theirs. Counts the targets of the
/// whole global batch without reading it, from the rank's own list of document ends. Throws ShapeError for a deal of
/// other rows or coordinates.
TrainBatch make_rank_batch(const Engine& engine, const RowSource& source, int64_t step, int64_t global_rows,
                           const RowDeal& deal = {});
TrainBatch make_rank_batch(const Engine& engine, const TaskRows& source, int64_t step, int64_t global_rows,
                           const RowDeal& deal = {});

/// The same piece of a batch that every rank has whole; sends nothing.
TrainBatch piece_of_rank(const Engine& engine, const TrainBatch& whole, const RowDeal& deal = {});

/// The same rows for a rank that steps on its own: losses are averaged over them alone.
TrainBatch on_its_own(TrainBatch batch);

/// The elements of `batch` in a box of [rows, context]; of whole rows if a row has several sequences. Shares the memory
/// of whole rows.
TrainBatch piece_of(TrainBatch batch, const Box& box);

/// Returns micro-batch `index` of `count`: see TrainBatch::unit. `step` counts from 0 and, with `seed`, keys the random
/// numbers.
MicroBatch micro_batch_of(const TrainBatch& batch, int64_t count, int index, uint64_t seed, int64_t step,
                          double loss_scale = 1);

/// Sends each rank of an axis its rows of `batch` from the first rank. Every rank of the axis calls it.
///   batch     on the first rank [rows, ..], any dtype; elsewhere [0, ..] with the same other sizes and dtype
///   rows      a multiple of the n ranks, else ShapeError; with `sizes`, the rows of each rank, their sum
///   returns   [rows / n, ..], or as many rows as `sizes` says
///   sends     the first rank (n-1)/n x batch
///   gradient  gathered on the first rank
at::Tensor scatter_rows(const at::Tensor& batch, int64_t rows, const Mesh& mesh, const std::string& axis = "dp",
                        const std::vector<int64_t>& sizes = {});
/// The inverse: gathers the rows of all ranks on the first one; [0, ..] elsewhere.
at::Tensor gather_rows(const at::Tensor& part, int64_t rows, const Mesh& mesh, const std::string& axis = "dp");

}  // namespace caravan
