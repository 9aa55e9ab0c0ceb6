#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

// ---- distances ----

/// Sizes without the last two dims, broadcast.
std::vector<int64_t> batch_sizes(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const size_t num_dims = std::max(a.size(), b.size()) - 2;
  std::vector<int64_t> sizes(num_dims, 1);
  for (const auto* each : {&a, &b}) {
    const size_t skipped = num_dims + 2 - each->size();
    for (size_t dim = 0; dim + 2 < each->size(); ++dim) {
      if ((*each)[dim] != 1) sizes[skipped + dim] = (*each)[dim];
    }
  }
  return sizes;
}

/// A rank may have no points.
void cdist_kernel(LocalCall& call) {
  const at::Tensor a = call.tensor("x1");
  const at::Tensor b = call.tensor("x2");
  if (a.numel() > 0 && b.numel() > 0) {
    on_contiguous({"x1", "x2", "grad", "cdist"})(call);
    return;
  }
  std::vector<int64_t> sizes = batch_sizes(a.sizes().vec(), b.sizes().vec());
  sizes.push_back(a.size(-2));
  sizes.push_back(call.schema().arguments()[0].name() == "grad" ? a.size(-1) : b.size(-2));
  call.give({at::zeros(sizes, a.options())});
}

/// Distances of each of P points from each of R. In backward every coordinate is on its own too, given the distances.
TypedResult cdist(const OpCall& call) {
  Typing typing(call);
  const std::vector<int64_t> a = call.sizes(typing.operand_of("x1"));
  const std::vector<int64_t> b = call.sizes(typing.operand_of("x2"));
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  const Dims batch = typing.of(batch_sizes(a, b));
  const std::string first = typing.next_dim(a[a.size() - 2]);
  const std::string second = typing.next_dim(b[b.size() - 2]);
  const std::string coordinate = typing.next_dim(a.back());
  const auto with = [&](size_t num_dims, const std::string& row, const std::string& column) {
    Dims dims(batch.end() - static_cast<int64_t>(std::min(batch.size(), num_dims - 2)), batch.end());
    dims.push_back(row);
    dims.push_back(column);
    return dims;
  };
  typing.operation.kernel = cdist_kernel;
  typing.set("x1", with(a.size(), first, coordinate));
  typing.set("x2", with(b.size(), second, coordinate));
  const Dims distances = with(batch.size() + 2, first, second);
  if (call.index("grad") < 0) {
    typing.need(coordinate);
    typing.operation.outputs = {distances};
    return typing.finish();
  }
  typing.set("grad", distances);
  typing.set("cdist", distances);
  typing.operation.outputs = {with(batch.size() + 2, first, coordinate)};
  typing.operation.terms = {{0}};
  return typing.finish();
}

/// Distances of all pairs of points: a row of a triangle for each, which no rank has a part of.
TypedResult pdist(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  if (dims.size() != 2) return std::nullopt;
  typing.need(dims[0]);
  typing.operation.kernel = on_contiguous({"self", "grad", "pdist"});
  if (call.index("grad") < 0) {
    typing.need(dims[1]);
    typing.operation.outputs = {{""}};
  } else {
    typing.operation.outputs = {dims};
  }
  return typing.finish();
}

// ---- ctc_loss ----

std::vector<int64_t> lengths_of(const c10::IValue& value) {
  if (!value.isTensor()) return value.toIntVector();
  const at::Tensor lengths = value.toTensor().to(at::kLong).contiguous();
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

/// The lengths of the sequences that this rank has: a list is of the whole batch, a tensor is a piece already.
std::vector<int64_t> own_lengths(LocalCall& call, const char* argument, const std::string& row) {
  const c10::IValue& value = call.argument(argument);
  std::vector<int64_t> lengths = lengths_of(value);
  if (value.isTensor()) return lengths;
  const LabelRange range = call.range(row[0]);
  return {lengths.begin() + range.begin, lengths.begin() + range.begin + range.length};
}

/// On a part of the batch. Its `log_alpha` is made as wide as that of the whole batch, since it is as wide as the
/// longest target.
void ctc_kernel(LocalCall& call, const std::string& row) {
  const at::Tensor log_probs = call.tensor("log_probs");
  const std::vector<int64_t> inputs = own_lengths(call, "input_lengths", row);
  const std::vector<int64_t> targets = own_lengths(call, "target_lengths", row);
  int64_t longest = targets.empty() ? 0 : *std::ranges::max_element(targets);
  longest = call.max_over(row, at::zeros({1}, log_probs.options().dtype(at::kLong)).fill_(longest)).item<int64_t>();
  const auto num_rows = static_cast<int64_t>(targets.size());
  at::Tensor loss = at::empty({num_rows}, log_probs.options());
  const at::Tensor log_alpha = at::zeros({num_rows, log_probs.size(0), 2 * longest + 1}, log_probs.options());
  if (num_rows > 0) {
    at::Tensor own;
    std::tie(loss, own) = at::_ctc_loss(log_probs, call.tensor("targets"), inputs, targets,
                                        call.argument("blank").toInt(), call.argument("zero_infinity").toBool());
    log_alpha.slice(2, 0, own.size(2)).copy_(own);
  }
  call.give({loss, log_alpha});
}

void ctc_backward_kernel(LocalCall& call, const std::string& row) {
  const at::Tensor log_probs = call.tensor("log_probs");
  const std::vector<int64_t> inputs = own_lengths(call, "input_lengths", row);
  const std::vector<int64_t> targets = own_lengths(call, "target_lengths", row);
  if (targets.empty()) {
    call.give({at::empty_like(log_probs)});
    return;
  }
  const int64_t longest = *std::ranges::max_element(targets);
  const at::Tensor log_alpha = call.tensor("log_alpha").slice(2, 0, 2 * longest + 1).contiguous();
  call.give({at::_ctc_loss_backward(call.tensor("grad"), log_probs, call.tensor("targets"), inputs, targets,
                                    call.tensor("neg_log_likelihood"), log_alpha, call.argument("blank").toInt(),
                                    call.argument("zero_infinity").toBool())});
}

/// Sequences are independent, if each has a row of `targets`.
TypedResult ctc_loss(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("log_probs");
  if (dims.size() != 3 || call.num_dims(typing.operand_of("targets")) != 2) return std::nullopt;
  const std::string row = dims[1];
  const bool is_backward = call.index("grad") >= 0;
  const std::string width = typing.next_dim(2);
  const std::string letters = typing.next_dim(2);
  typing.need(dims[0] + dims[2] + width + letters);
  typing.set("targets", {row, width});
  typing.set("input_lengths", {row});
  typing.set("target_lengths", {row});
  typing.set("grad", {row});
  typing.set("neg_log_likelihood", {row});
  typing.set("log_alpha", {row, dims[0], letters});
  if (is_backward) {
    typing.operation.outputs = {dims};
  } else {
    typing.operation.outputs = {{row}, {row, dims[0], ""}};
  }
  if (row.empty()) return typing.finish();
  if (has_blocks(call)) {
    typing.need(row);
    return typing.finish();
  }
  typing.operation.kernel_labels = row;
  typing.operation.kernel = [row, is_backward](LocalCall& local) {
    is_backward ? ctc_backward_kernel(local, row) : ctc_kernel(local, row);
  };
  return typing.finish();
}

}  // namespace

void add_distance_rules(RuleTable& rules) {
  rules.add({"aten::_cdist_forward", "aten::_cdist_backward"}, cdist);
  rules.add({"aten::_pdist_forward", "aten::_pdist_backward"}, pdist);
  rules.add(
      {"aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"},
      ctc_loss);
}

}  // namespace caravan
