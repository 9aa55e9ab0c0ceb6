#include "caravan/formats/huggingface/hf_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/hf_rows.h"
#include "caravan/models/model.h"

namespace caravan {
namespace {

/// Endings of tensors in older files that are not parameters.
constexpr std::array<std::string_view, 5> kNotParameters{".attn.bias", ".attn.masked_bias", ".attention.bias",
                                                         ".attention.masked_bias", ".rotary_emb.inv_freq"};

TensorShapes our_shapes(const ModelConfig& config) {
  TensorShapes shapes;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) shapes[parameter->name()] = parameter->global_shape();
  return shapes;
}

/// For each Hugging Face tensor in the row.
std::vector<int64_t> their_shape(const HuggingfaceRow& row, const TensorShapes& ours) {
  std::vector<int64_t> shape = ours.at(row.ours.front());
  for (size_t i = 1; i < row.ours.size(); ++i) shape[0] += ours.at(row.ours[i])[0];
  shape[0] /= static_cast<int64_t>(row.theirs.size());
  if (row.form == WeightColumn::Form::transposed) std::reverse(shape.begin(), shape.end());
  shape[0] += row.unused_rows;
  return shape;
}

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

/// Ours, by name, of theirs as one.
void take_apart(const HuggingfaceRow& row, const at::Tensor& theirs, const TensorShapes& shapes,
                std::map<std::string, at::Tensor>& ours) {
  at::Tensor whole = row.unused_rows > 0 ? theirs.narrow(0, row.unused_rows, theirs.size(0) - row.unused_rows) : theirs;
  if (row.form == WeightColumn::Form::transposed) whole = whole.dim() == 2 ? whole.t() : whole;
  if (row.offset != 0) whole = whole + row.offset;
  const bool is_by_head = row.form == WeightColumn::Form::by_head;
  if (is_by_head) whole = grouped(whole, row.groups);
  int64_t first = 0;
  for (const std::string& name : row.ours) {
    const int64_t size = shapes.at(name).front() / (is_by_head ? row.groups : 1);
    const at::Tensor part = whole.narrow(is_by_head ? 1 : 0, first, size);
    ours[name] = (is_by_head ? part.flatten(0, 1) : part).contiguous();
    first += size;
  }
}

/// With what is in their tensor beside ours.
at::Tensor as_theirs(const HuggingfaceRow& row, at::Tensor part, TensorKind kind) {
  if (row.form == WeightColumn::Form::transposed && part.dim() == 2) part = part.t().contiguous();
  if (row.offset != 0 && kind == TensorKind::values) part = part - row.offset;
  if (row.unused_rows == 0) return part;
  return at::cat({part.new_zeros({row.unused_rows, part.size(1)}), part});
}

/// The tensors by name. Throws DataError if they differ from `wanted`.
std::map<std::string, at::Tensor> checked(std::string_view op, const NamedTensors& tensors,
                                          const TensorShapes& wanted) {
  std::map<std::string, at::Tensor> found;
  std::vector<std::string> unexpected;
  std::vector<std::string> missing;
  std::vector<std::string> other_shape;
  for (const auto& [name, tensor] : tensors) {
    const auto want = wanted.find(name);
    if (want == wanted.end() || !found.emplace(name, tensor).second) {
      unexpected.push_back(name);
    } else if (tensor.sizes() != at::IntArrayRef(want->second)) {
      other_shape.push_back(fmt::format("{} is [{}], not [{}]", name, join(tensor.sizes()), join(want->second)));
    }
  }
  for (const auto& [name, shape] : wanted) {
    if (!found.contains(name)) missing.push_back(name);
  }
  std::string fact;
  const auto say = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    fact += fmt::format("{}{} {}: {}", fact.empty() ? "" : "; ", names.size(), what, some_of(names, 8));
  };
  say("missing", missing);
  say("unexpected", unexpected);
  say("of a different shape", other_shape);
  if (fact.empty()) return found;
  throw DataError({std::string(op), "tensors", fact, "", "use the weights of the model that config.json describes"});
}

/// Their name with the prefix, as in the table; "" for a tensor that is not a parameter.
std::string spelled(const HuggingfaceTable& table, const std::string& name) {
  if (std::any_of(kNotParameters.begin(), kNotParameters.end(), [&](auto end) { return name.ends_with(end); }))
    return "";
  if (name.starts_with(table.prefix) || name == table.head) return name;
  return fmt::format("{}{}", table.prefix, name);
}

void check_tied_head(const std::string& name, const at::Tensor& head, const at::Tensor& embedding) {
  if (head.is_meta() || (head.sizes() == embedding.sizes() && head.scalar_type() == embedding.scalar_type() &&
                         at::equal(head, embedding))) {
    return;
  }
  throw DataError({"import", name, "differs from the embedding that it is tied to", "",
                   "set tie_word_embeddings to false in config.json"});
}

}  // namespace

NamedTensors to_huggingface(const ModelConfig& config, const NamedTensors& ours, TensorKind kind) {
  const TensorShapes shapes = our_shapes(config);
  const HuggingfaceTable table = huggingface_table(config, shapes);
  const auto found = checked("export", ours, shapes);
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
  TensorShapes wanted;
  for (const HuggingfaceRow& row : table.rows) {
    for (const std::string& name : row.theirs) wanted[name] = their_shape(row, shapes);
  }
  NamedTensors parameters;
  at::Tensor tied_head;
  for (const auto& [name, tensor] : theirs) {
    const std::string spelling = spelled(table, name);
    if (config.tie_embeddings && spelling == table.head) {
      tied_head = tensor;
    } else if (!spelling.empty()) {
      parameters.emplace_back(spelling, tensor);
    }
  }
  const auto found = checked("import", parameters, wanted);
  std::map<std::string, at::Tensor> ours;
  for (const HuggingfaceRow& row : table.rows) {
    take_apart(row, joined(those_of(row.theirs, found)), shapes, ours);
  }
  if (tied_head.defined()) check_tied_head(table.head, tied_head, ours.at("embedding.token.weight"));
  NamedTensors ordered;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    ordered.emplace_back(parameter->name(), ours.at(parameter->name()));
  }
  return ordered;
}

}  // namespace caravan
