#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/stages/stage_runner.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

class TrainWindows;

/// What is trained on in a step, or a box of it: what one rank is given, as Strategy::batch_layout lays it out.
struct TrainBatch {
  at::Tensor ids;     ///< [rows, context] int64
  at::Tensor labels;  ///< the same; labels[b, t] is the target of ids[b, t], kIgnoredLabel none
  int64_t first_row = 0;
  int64_t global_rows = 0;
  int64_t num_targets = 0;  ///< targets of the whole global batch: what the loss is divided by
  int64_t mean_rows = 0;    ///< rows that losses are means over; 0: global_rows
  /// Of packed documents, like ids: see ForwardContext. Undefined: every row is one document, from position 0 on.
  at::Tensor positions{};
  at::Tensor documents{};

  /// The tensors that are there: what is cut, sent or copied alike.
  std::vector<at::Tensor*> tensors();
};

/// Rows of the training texts: row r is sample first_sample + r.
TrainBatch make_batch(const TrainWindows& windows, int64_t first_sample, int64_t rows);

/// Where the rows of a batch come from.
struct RowSource {
  int64_t context = 0;  ///< tokens of a row
  std::function<TrainBatch(int64_t first_sample, int64_t rows)> make;
  std::function<int64_t(int64_t first_sample, int64_t rows)> num_targets;
};

/// What this rank trains on in a step: its piece of the `global_rows` rows, by Strategy::batch_layout. Every rank of
/// the mesh calls it, and makes its own rows only; with Strategy::controller_axis, the first rank makes all, and every
/// other receives its own. The targets of the whole global batch are counted without reading it: each rank looks the
/// ends of documents up in its own list of them.
TrainBatch make_rank_batch(const Engine& engine, const RowSource& source, int64_t step, int64_t global_rows);
TrainBatch make_rank_batch(const Engine& engine, const TrainWindows& windows, int64_t step, int64_t global_rows);

/// The same piece of a batch that every rank has; nothing is sent.
TrainBatch piece_of_rank(const Engine& engine, const TrainBatch& whole);

/// The same rows, for a rank that steps on its own: losses are means over them alone.
TrainBatch on_its_own(TrainBatch batch);

/// The elements of `batch` in a box of [rows, context]. Shares the memory of whole rows.
TrainBatch piece_of(TrainBatch batch, const Box& box);

/// Micro-batch `index` of `count` equal ones. `step` counts from 0 and, with `seed`, keys the random numbers.
MicroBatch micro_batch_of(const TrainBatch& batch, int64_t count, int index, uint64_t seed, int64_t step,
                          double loss_scale = 1);

/// The rows of `batch` for this rank of an axis, from the first rank. Every rank of the axis calls it.
///   batch     on the first rank [rows, ..], any dtype; elsewhere [0, ..] with the same other sizes and dtype
///   rows      a multiple of the n ranks, else ShapeError
///   returns   [rows / n, ..]
///   sends     the first rank (n-1)/n x batch
///   gradient  gathered on the first rank
at::Tensor scatter_rows(const at::Tensor& batch, int64_t rows, const Mesh& mesh, const std::string& axis = "dp");
/// The way back: the rows of all ranks on the first one, [0, ..] elsewhere.
at::Tensor gather_rows(const at::Tensor& part, int64_t rows, const Mesh& mesh, const std::string& axis = "dp");

}  // namespace caravan
