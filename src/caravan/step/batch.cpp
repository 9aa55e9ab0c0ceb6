#include "caravan/step/batch.h"

#include <algorithm>
#include <span>

#include <ATen/ops/empty.h>

#include "caravan/base/error.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// The layout of a batch whose data axis, or the axes that it is made of, has the rows of `deal`.
Layout dealt_layout(const Layout& even, const Mesh& mesh, const RowDeal& deal) {
  if (deal.is_even()) return even;
  const MeshAxis* axis = mesh.joined(even.sharding(0));
  if (axis == nullptr) {
    throw LayoutError({"batch", "deal", "no axis of the mesh has the rows of the batch alone",
                       mesh.where() + ", batch " + even.to_string(), "deal equal rows"});
  }
  std::vector<Layout::Entry> entries{{axis->name(), Shard{.dim = 0, .sizes = deal.rows}}};
  for (const auto& entry : even.entries()) {
    if (!entry.second.is_shard(0)) entries.push_back(entry);
  }
  return Layout(std::move(entries));
}

Box box_of_rank(const Engine& engine, int64_t rows, int64_t length, const RowDeal& deal) {
  const Mesh& mesh = engine.mesh();
  return local_box({rows, length}, dealt_layout(engine.strategy().batch_layout, mesh, deal), mesh, "batch");
}

/// All rows on the first rank of the axis, or parts of them on each.
Layout rows_on(const Shard& shard, const Mesh& mesh, const std::string& axis) {
  return Layout({{axis, shard}}).completed(mesh, Invariant{});
}

}  // namespace

std::vector<at::Tensor*> TrainBatch::tensors() {
  std::vector<at::Tensor*> all{&ids, &labels};
  if (positions.defined()) all.push_back(&positions);
  if (documents.defined()) all.push_back(&documents);
  if (token_types.defined()) all.push_back(&token_types);
  return all;
}

TrainBatch empty_batch(const RowShape& shape, int64_t rows, at::DeviceType device) {
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
  const auto make = [&](bool is_used) { return is_used ? at::empty({rows, shape.length}, options) : at::Tensor(); };
  TrainBatch batch{.ids = make(true), .labels = make(true)};
  batch.sequences = shape.num_sequences;
  batch.positions = make(shape.has_positions);
  batch.documents = make(shape.has_documents);
  batch.token_types = make(shape.has_token_types);
  return batch;
}

RowBuffers buffers_of(TrainBatch& batch) {
  const auto data_of = [](at::Tensor& tensor) -> std::span<int64_t> {
    if (!tensor.defined()) return {};
    return {tensor.mutable_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
  };
  return {.ids = data_of(batch.ids),
          .labels = data_of(batch.labels),
          .documents = data_of(batch.documents),
          .positions = data_of(batch.positions),
          .token_types = data_of(batch.token_types)};
}

void set_tokens(ForwardContext& context, const TrainBatch& batch) {
  context.positions = batch.positions;
  context.documents = batch.documents;
  context.token_types = batch.token_types;
}

TrainBatch make_batch(const TaskRows& source, int64_t first_sample, int64_t rows) {
  TrainBatch batch = empty_batch(source.shape(), rows);
  source.fill(first_sample, buffers_of(batch));
  batch.global_rows = rows;
  batch.num_targets = source.num_targets(first_sample, rows);
  return batch;
}

TrainBatch make_rank_batch(const Engine& engine, const RowSource& source, int64_t step, int64_t global_rows,
                           const RowDeal& deal) {
  const Mesh& mesh = engine.mesh();
  const Box mine = box_of_rank(engine, global_rows, source.context, deal);
  const int64_t first = step * global_rows;
  const std::string& axis = engine.strategy().controller_axis;
  TrainBatch rows;
  if (axis.empty()) {
    rows = source.make(first + mine.offset[0], mine.size[0]);
  } else {
    rows = source.make(first, mesh[axis].coord() == 0 ? global_rows : 0);
    for (at::Tensor* all : rows.tensors()) *all = scatter_rows(*all, global_rows, mesh, axis, deal.rows);
  }
  TrainBatch batch = piece_of(std::move(rows), {{0, mine.offset[1]}, mine.size});
  batch.first_row = mine.offset[0];
  batch.global_rows = global_rows;
  batch.num_targets = source.num_targets(first, global_rows);
  batch.unit = deal.is_even() ? 0 : deal.unit;
  return batch;
}

TrainBatch make_rank_batch(const Engine& engine, const TaskRows& source, int64_t step, int64_t global_rows,
                           const RowDeal& deal) {
  const RowSource rows{.context = source.shape().length,
                       .make = [&](int64_t first, int64_t count) { return make_batch(source, first, count); },
                       .num_targets = [&](int64_t first, int64_t count) { return source.num_targets(first, count); }};
  return make_rank_batch(engine, rows, step, global_rows, deal);
}

TrainBatch piece_of_rank(const Engine& engine, const TrainBatch& whole, const RowDeal& deal) {
  TrainBatch piece = piece_of(whole, box_of_rank(engine, whole.global_rows, whole.ids.size(1), deal));
  piece.unit = deal.is_even() ? 0 : deal.unit;
  return piece;
}

TrainBatch on_its_own(TrainBatch batch) {
  const bool counts_rows = batch.sequences > 1;  // pairs
  batch.num_targets = counts_rows              ? batch.ids.size(0)
                      : batch.labels.is_meta() ? batch.labels.numel()
                                               : batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  batch.mean_rows = batch.ids.size(0);
  return batch;
}

TrainBatch piece_of(TrainBatch batch, const Box& box) {
  for (at::Tensor* tensor : batch.tensors()) {
    *tensor = tensor->narrow(0, box.offset[0], box.size[0]).narrow(1, box.offset[1], box.size[1]).contiguous();
  }
  if (batch.preference && batch.preference->reference.defined()) {
    batch.preference->reference = batch.preference->reference.narrow(0, box.offset[0], box.size[0]);
  }
  batch.first_row += box.offset[0];
  return batch;
}

MicroBatch micro_batch_of(const TrainBatch& batch, int64_t count, int index, uint64_t seed, int64_t step,
                          double loss_scale) {
  const RowRange rows = rows_of_micro_batch(batch.ids.size(0), count, index, std::max<int64_t>(batch.unit, 1));
  const TrainBatch part = piece_of(batch, {{rows.first, 0}, {rows.count, batch.ids.size(1)}});
  const int64_t sequences = batch.sequences;
  const auto apart = [&](const at::Tensor& all) {
    return sequences == 1 ? all : all.view({all.size(0) * sequences, all.size(1) / sequences});
  };
  MicroBatch micro{apart(part.ids), apart(part.labels), {}};
  ForwardContext& context = micro.context;
  context.seed = seed;
  context.step = step;
  context.micro_batch = index;
  context.loss_scale = loss_scale / static_cast<double>(std::max<int64_t>(batch.num_targets, 1));
  const int64_t mean_rows = batch.mean_rows > 0 ? batch.mean_rows : batch.global_rows;
  context.gradient_scale = loss_scale * static_cast<double>(batch.global_rows) / static_cast<double>(mean_rows);
  set_tokens(context, part);
  context.set(Dim::batch, DimIndex(sequences * part.first_row, sequences * rows.count, sequences * batch.global_rows));
  if (!part.preference) return micro;
  PreferencePass pass = *part.preference;
  if (pass.reference.defined()) pass.reference = pass.reference.reshape({-1});
  context.preference = std::make_shared<const PreferencePass>(std::move(pass));
  return micro;
}

at::Tensor scatter_rows(const at::Tensor& batch, int64_t rows, const Mesh& mesh, const std::string& axis,
                        const std::vector<int64_t>& sizes) {
  const Shard first{.dim = 0, .owner = 0, .rows = rows};
  const Shard parts{.dim = 0, .sizes = sizes};
  return redistribute(batch, rows_on(first, mesh, axis), rows_on(parts, mesh, axis), mesh, "batch");
}

at::Tensor gather_rows(const at::Tensor& part, int64_t rows, const Mesh& mesh, const std::string& axis) {
  const Shard first{.dim = 0, .owner = 0, .rows = rows};
  return redistribute(part, rows_on({0}, mesh, axis), rows_on(first, mesh, axis), mesh, "batch");
}

}  // namespace caravan
