#include "caravan/formats/huggingface/hf_names.h"

#include <map>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"

namespace caravan {
namespace {

std::vector<at::Tensor> those_of(const std::vector<std::string>& names,
                                 const std::map<std::string, at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const std::string& name : names) parts.push_back(tensors.at(name));
  return parts;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, int64_t dim = 0) {
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

/// Dim 0 in groups: [groups, rows, ..].
at::Tensor grouped(const at::Tensor& x, int64_t groups) { return x.unflatten(0, {groups, x.size(0) / groups}); }

/// Their tensors, as one, of ours.
at::Tensor together(const HuggingfaceRow& row, std::vector<at::Tensor> ours) {
  if (row.form == WeightColumn::Form::by_head) {
    for (at::Tensor& part : ours) part = grouped(part, row.groups);
    return joined(ours, 1).flatten(0, 1);
  }
  return joined(ours);
}

/// row.ours[part] of theirs.
at::Tensor ours_of(const HuggingfaceRow& row, size_t part, const std::vector<at::Tensor>& theirs,
                   const TensorShapes& shapes) {
  std::vector<at::Tensor> pieces;
  for (const TheirRows& range : ranges_of(row, shapes, part, 0, shapes.at(row.ours[part]).front())) {
    const at::Tensor& from = theirs[range.tensor];
    pieces.push_back(row.is_transposed(static_cast<size_t>(from.dim()))
                         ? from.narrow(1, range.begin, range.rows).t()
                         : from.narrow(0, row.unused_rows + range.begin, range.rows));
  }
  const at::Tensor whole = joined(pieces).contiguous();
  return row.offset == 0 ? whole : whole + row.offset;
}

/// With what is in their tensor beside ours.
at::Tensor as_theirs(const HuggingfaceRow& row, at::Tensor part, TensorKind kind) {
  if (row.is_transposed(static_cast<size_t>(part.dim()))) part = part.t().contiguous();
  if (row.offset != 0 && kind == TensorKind::values) part = part - row.offset;
  if (row.unused_rows == 0) return part;
  return at::cat({part.new_zeros({row.unused_rows, part.size(1)}), part});
}

NamedShapes shapes_of(const NamedTensors& tensors) {
  NamedShapes shapes;
  for (const auto& [name, tensor] : tensors) shapes.emplace_back(name, tensor.sizes().vec());
  return shapes;
}

void check_tied_head(const std::string& name, const at::Tensor& head, const at::Tensor& embedding) {
  if (head.is_meta() || (head.sizes() == embedding.sizes() && head.scalar_type() == embedding.scalar_type() &&
                         at::equal(head, embedding))) {
    return;
  }
  refuse_tied_head(name);
}

}  // namespace

TensorShapes our_shapes(const ModelConfig& config) {
  TensorShapes shapes;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) shapes[parameter->name()] = parameter->global_shape();
  return shapes;
}

NamedTensors to_huggingface(const ModelConfig& config, const NamedTensors& ours, TensorKind kind) {
  const TensorShapes shapes = our_shapes(config);
  const HuggingfaceTable table = huggingface_table(config, shapes);
  check_tensors("export", shapes_of(ours), shapes);
  const std::map<std::string, at::Tensor> found(ours.begin(), ours.end());
  NamedTensors theirs;
  for (const HuggingfaceRow& row : table.rows) {
    const at::Tensor whole = together(row, those_of(row.ours, found));
    const int64_t size = whole.size(0) / static_cast<int64_t>(row.theirs.size());
    int64_t first = 0;
    for (const std::string& name : row.theirs) {
      const at::Tensor part = whole.narrow(0, first, size);
      theirs.emplace_back(name, as_theirs(row, part, kind));
      first += size;
    }
  }
  return theirs;
}

NamedTensors from_huggingface(const ModelConfig& config, const NamedTensors& theirs) {
  const TensorShapes shapes = our_shapes(config);
  const HuggingfaceTable table = huggingface_table(config, shapes);
  const HuggingfaceNames names = find_parameters(config, table, shapes, shapes_of(theirs));
  const std::map<std::string, at::Tensor> in_file(theirs.begin(), theirs.end());
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, of_file] : names.of_file) found.emplace(name, in_file.at(of_file));
  std::map<std::string, at::Tensor> ours;
  for (const HuggingfaceRow& row : table.rows) {
    const std::vector<at::Tensor> of_row = those_of(row.theirs, found);
    for (size_t part = 0; part < row.ours.size(); ++part) ours[row.ours[part]] = ours_of(row, part, of_row, shapes);
  }
  if (!names.tied_head.empty()) {
    check_tied_head(table.head, in_file.at(names.tied_head), ours.at("embedding.token.weight"));
  }
  NamedTensors ordered;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    ordered.emplace_back(parameter->name(), ours.at(parameter->name()));
  }
  return ordered;
}

}  // namespace caravan
