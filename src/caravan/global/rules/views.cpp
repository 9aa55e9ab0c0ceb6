#include <algorithm>

#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/planes.h"
#include "caravan/global/rules/regroup.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {

TypedCall reordered(const OpCall& call, const Sizes& order) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.operand(0))}, .terms = {{0}}};
  Dims output;
  for (const int64_t dim : order) output.push_back(dim < 0 ? "" : operation.inputs[0][dim]);
  for (size_t dim = 0; dim < operation.inputs[0].size(); ++dim) {  // dims of one element that are dropped
    if (std::ranges::find(order, static_cast<int64_t>(dim)) == order.end()) operation.whole += operation.inputs[0][dim];
  }
  operation.outputs = {output};
  return operation;
}

TypedCall within_dims(const OpCall& call, const Sizes& dims) {
  TypedCall operation = reordered(call, identity_order(call.num_dims(0)));
  for (const int64_t dim : dims) operation.whole += operation.inputs[0][wrapped(dim, call.num_dims(0))];
  return operation;
}

namespace {

// ---- dims in another order ----

TypedResult transpose(const OpCall& call) {
  Sizes order = identity_order(call.num_dims(0));
  if (call.schema().name().starts_with("aten::t") && call.index("dim0") < 0) {
    std::reverse(order.begin(), order.end());
  } else if (!order.empty()) {
    std::swap(order[call.dim("dim0")], order[call.dim("dim1")]);
  }
  return reordered(call, order);
}

TypedResult permute(const OpCall& call) {
  Sizes order;
  for (const int64_t dim : call.integers("dims")) order.push_back(wrapped(dim, call.num_dims(0)));
  return reordered(call, order);
}

/// Drops the dims that have one element in the global tensor: a piece may have one row of others too.
TypedResult squeeze(const OpCall& call) {
  Sizes asked;
  const Sizes sizes = call.sizes(0);
  if (call.index("dim") < 0) {
    asked = identity_order(call.num_dims(0));
  } else {
    for (const int64_t dim : call.integers("dim")) asked.push_back(wrapped(dim, call.num_dims(0)));
  }
  Sizes order;
  Sizes dropped;
  for (int64_t dim = 0; dim < call.num_dims(0); ++dim) {
    const bool is_dropped = sizes[dim] == 1 && std::ranges::find(asked, dim) != asked.end();
    (is_dropped ? dropped : order).push_back(dim);
  }
  TypedCall operation = reordered(call, order);
  operation.kernel = [dropped, is_copy = call.schema().name() == "aten::squeeze_copy",
                      is_in_place = call.schema().name() == "aten::squeeze_"](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    if (is_in_place) return local.give({self.squeeze_(dropped)});
    local.give({is_copy ? self.squeeze(dropped).clone() : self.squeeze(dropped)});
  };
  return operation;
}

TypedResult unsqueeze(const OpCall& call) {
  Sizes order = identity_order(call.num_dims(0));
  order.insert(order.begin() + wrapped(call.integer("dim"), call.num_dims(0) + 1), -1);
  return reordered(call, order);
}

// ---- other sizes of the same elements ----

/// Sizes with -1 replaced.
Sizes known_sizes(Sizes sizes, int64_t elements) {
  const auto unknown = std::ranges::find(sizes, -1);
  if (unknown == sizes.end()) return sizes;
  *unknown = 1;
  const int64_t others = num_elements(sizes);
  *unknown = others == 0 ? 0 : elements / others;
  return sizes;
}

/// A piece may lie in memory such that it has no view of these sizes: it is copied then.
void reshape_piece(LocalCall& call) {
  const at::Tensor self = call.tensor("self");
  const c10::DimVector sizes = call.argument("size").toDimVector();
  call.give(self.is_contiguous() ? self.view(sizes) : self.reshape(sizes));
}

TypedResult view(const OpCall& call) {
  const Sizes before = call.sizes(0);
  const Sizes after = known_sizes(call.integers("size"), num_elements(before));
  Regrouped dims = regroup(before, after);
  TypedCall operation{.inputs = {dims.before}, .outputs = {dims.after}, .whole = dims.whole, .terms = {{0}}};
  operation.extents = std::move(dims.extents);
  operation.local_arguments = {{call.index("size"), dims.after}};
  operation.kernel = reshape_piece;
  return operation;
}

/// The same bits as another dtype: the last dim is whole unless the elements are as large.
TypedResult view_dtype(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}};
  operation.outputs = operation.inputs;
  if (call.num_dims(0) > 0) {
    operation.whole = operation.inputs[0].back();
    operation.outputs[0].back() = "";
  }
  return operation;
}

TypedResult expand(const OpCall& call) {
  const Sizes before = call.sizes(0);
  const Sizes after = call.integers("size");
  Labels labels;
  TypedCall operation{.inputs = {labels.of(before)}, .terms = {{0}}};
  Dims output;
  const size_t added = after.size() - before.size();
  for (size_t dim = 0; dim < after.size(); ++dim) {
    const bool is_own = dim >= added && (after[dim] == -1 || before[dim - added] == after[dim]);
    output.push_back(is_own ? operation.inputs[0][dim - added] : std::string(1, labels.next()));
    if (is_own) continue;
    operation.whole += output.back();
    operation.extents[output.back()[0]] = after[dim];
  }
  operation.outputs = {output};
  operation.local_arguments = {{call.index("size"), output}};
  return operation;
}

TypedResult repeat(const OpCall& call) {
  const Sizes before = call.sizes(0);
  const Sizes repeats = call.integers("repeats");
  Labels labels;
  TypedCall operation{.inputs = {labels.of(before)}, .terms = {{0}}};
  const size_t added = repeats.size() - before.size();
  Dims output;
  for (size_t dim = 0; dim < repeats.size(); ++dim) {
    std::string label = dim < added ? "" : operation.inputs[0][dim - added];
    if (!label.empty()) operation.extents[label[0]] = before[dim - added];
    if (repeats[dim] != 1) {
      const char copies = labels.next();
      operation.whole += copies;
      operation.extents[copies] = repeats[dim];
      label.insert(label.begin(), copies);
    }
    output.push_back(label);
  }
  operation.outputs = {output};
  return operation;
}

TypedResult pad(const OpCall& call) {
  const Sizes pads = call.integers("pad");
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}};
  operation.outputs = operation.inputs;
  if (call.number("value", 0) == 0) operation.terms = {{0}};
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    const int64_t dim = call.num_dims(0) - 1 - static_cast<int64_t>(i / 2);
    if (pads[i] == 0 && pads[i + 1] == 0) continue;
    operation.whole += operation.inputs[0][dim];
    operation.outputs[0][dim] = "";
  }
  return operation;
}

// ---- other kinds of elements, channels and planes ----

TypedResult view_as_real(const OpCall& call) {
  Sizes order = identity_order(call.num_dims(0));
  order.push_back(-1);
  return reordered(call, order);
}

TypedResult view_as_complex(const OpCall& call) {
  TypedCall operation = within_dims(call, {-1});
  operation.outputs[0].pop_back();
  return operation;
}

/// [.., c r r, h, w] with [.., c, h r, w r]: factors are whole.
TypedResult pixels(const OpCall& call, bool is_shuffle) {
  const Sizes sizes = call.sizes(0);
  const int64_t r = call.integer(is_shuffle ? "upscale_factor" : "downscale_factor");
  const size_t at = sizes.size() - 3;
  Labels labels;
  TypedCall operation{.terms = {{0}}};
  const auto label = [&](int64_t extent, bool is_factor) {
    if (extent == 1) return std::string();
    const char next = labels.next();
    operation.extents[next] = extent;
    if (is_factor) operation.whole += next;
    return std::string(1, next);
  };
  const Dims batch = labels.of(Sizes(sizes.begin(), sizes.begin() + static_cast<int64_t>(at)));
  const int64_t planar = is_shuffle ? 1 : r;
  const std::string c = label(is_shuffle ? sizes[at] / (r * r) : sizes[at], false);
  const std::string h = label(sizes[at + 1] / planar, false);
  const std::string w = label(sizes[at + 2] / planar, false);
  const std::string x = label(r, true);
  const std::string y = label(r, true);
  Dims deep = batch;
  deep.insert(deep.end(), {c + x + y, h, w});
  Dims wide = batch;
  wide.insert(wide.end(), {c, h + x, w + y});
  operation.inputs = {is_shuffle ? deep : wide};
  operation.outputs = {is_shuffle ? wide : deep};
  never_empty(call, operation);
  return operation;
}

TypedResult channel_shuffle(const OpCall& call) { return within_dims(call, {1}); }

/// Part of a dim, which is whole.
TypedResult narrow_copy(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  TypedCall operation = within_dims(call, {dim});
  operation.outputs[0][dim] = "";
  return operation;
}

}  // namespace

void add_view_rules(RuleTable& rules) {
  rules.add({"aten::t", "aten::t_copy", "aten::numpy_T", "aten::transpose.int", "aten::transpose_copy.int",
             "aten::transpose_", "aten::t_", "aten::swapaxes", "aten::swapaxes_", "aten::swapdims_"},
            transpose);
  rules.add({"aten::permute", "aten::permute_copy"}, permute);
  rules.add({"aten::squeeze", "aten::squeeze_copy", "aten::squeeze_"}, squeeze);
  rules.add({"aten::unsqueeze", "aten::unsqueeze_copy", "aten::unsqueeze_"}, unsqueeze);
  rules.add({"aten::view", "aten::_unsafe_view", "aten::view_copy", "aten::_reshape_alias", "aten::_reshape_copy",
             "aten::reshape"},
            view);
  rules.add({"aten::view.dtype", "aten::view_copy.dtype"}, view_dtype);
  rules.add({"aten::expand", "aten::expand_copy"}, expand);
  rules.add({"aten::tril", "aten::triu", "aten::tril_", "aten::triu_"}, [](const OpCall& call) -> TypedResult {
    return within_dims(call, {call.num_dims(0) - 2, call.num_dims(0) - 1});
  });
  rules.add("aten::repeat", repeat);
  rules.add("aten::detach_", [](const OpCall& call) -> TypedResult { return within_dims(call, {}); });
  rules.add("aten::constant_pad_nd", pad);
  rules.add({"aten::view_as_real", "aten::view_as_real_copy"}, view_as_real);
  rules.add({"aten::view_as_complex", "aten::view_as_complex_copy"}, view_as_complex);
  rules.add("aten::pixel_shuffle", [](const OpCall& call) { return pixels(call, true); });
  rules.add("aten::pixel_unshuffle", [](const OpCall& call) { return pixels(call, false); });
  rules.add({"aten::channel_shuffle", "aten::native_channel_shuffle"}, channel_shuffle);
  rules.add("aten::narrow_copy", narrow_copy);
  add_part_rules(rules);
  add_diagonal_rules(rules);
  add_refusals(rules);
}

}  // namespace caravan
