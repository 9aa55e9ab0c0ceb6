#include <algorithm>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/looked_up.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// Labels of x[indices], where tensors of ints, which are broadcast together, or masks stand for some dims of x.
struct Indexing {
  Dims self;
  std::vector<Dims> indices;  ///< of each tensor
  Dims result;
  std::string indexed;    ///< labels of x that have an index
  std::string positions;  ///< labels of the dims of the indices
  size_t begin = 0;       ///< where the dims of the indices stand in the result
  int num_masks = 0;
};

class IndexReader {
 public:
  IndexReader(const OpCall& call, Labels& labels) : call_(call), labels_(labels) {}

  /// Nothing for what has no labels: masks without dims.
  std::optional<Indexing> read() {
    all_.self = labels_.of(call_.sizes(0));
    const std::vector<int> operands = call_.operands_of("indices");
    if (operands.empty() || !place(operands)) return std::nullopt;
    Dims dims = labels_.next(num_dims_);
    Dims wide(num_dims_, "");
    for (size_t i = 0; i < operands.size(); ++i) name(operands[i], is_mask_[i], dims, wide);
    for (const std::string& dim : wide) all_.positions += dim;
    if (all_.num_masks > 0) wide.assign(num_dims_, "");  // as many as the masks select
    all_.result.assign(kept_.begin(), kept_.end());
    all_.begin = is_together_ ? num_before_ : 0;
    all_.result.insert(all_.result.begin() + static_cast<int64_t>(all_.begin), wide.begin(), wide.end());
    return std::move(all_);
  }

 private:
  /// Which dims of self each index stands for.
  bool place(const std::vector<int>& operands) {
    const auto list = call_.value("indices").toListRef();
    size_t dim = 0;
    int last = -1;
    for (const int operand : operands) {
      const int element = call_.operand(operand).element;
      if (last >= 0 && element != last + 1) is_together_ = false;
      keep(dim, element - last - 1);
      if (last < 0) num_before_ = kept_.size();
      last = element;
      const at::ScalarType dtype = list[element].toTensor().scalar_type();
      const bool is_mask = dtype == at::kBool || dtype == at::kByte;
      const auto num_dims = static_cast<int64_t>(call_.num_dims(operand));
      if (is_mask && num_dims == 0) return false;
      is_mask_.push_back(is_mask);
      all_.num_masks += is_mask ? 1 : 0;
      num_dims_ = std::max(num_dims_, is_mask ? int64_t{1} : num_dims);
      for (int64_t i = 0; i < (is_mask ? num_dims : 1); ++i) all_.indexed += all_.self.at(dim++);
    }
    keep(dim, static_cast<int64_t>(all_.self.size() - dim));
    return true;
  }

  void keep(size_t& dim, int64_t count) {
    for (int64_t i = 0; i < count; ++i) kept_.push_back(all_.self.at(dim++));
  }

  void name(int operand, bool is_mask, const Dims& dims, Dims& wide) {
    const Sizes sizes = call_.sizes(operand);
    if (is_mask) {
      all_.indices.push_back(labels_.of(sizes));
      for (const std::string& dim : all_.indices.back()) all_.indexed += dim;
      return;
    }
    const size_t skipped = dims.size() - sizes.size();
    Dims own;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      own.push_back(sizes[dim] == 1 ? "" : dims[skipped + dim]);
      if (sizes[dim] != 1) wide[skipped + dim] = dims[skipped + dim];
    }
    all_.indices.push_back(std::move(own));
  }

  const OpCall& call_;
  Labels& labels_;
  Indexing all_;
  Dims kept_;
  std::vector<bool> is_mask_;
  int64_t num_dims_ = 0;
  size_t num_before_ = 0;
  bool is_together_ = true;
};

/// Reads the rows that this rank has of the one dim that is indexed.
LocalKernel reads_own_rows(int64_t dim, size_t element, size_t begin, const std::string& label) {
  return [dim, element, begin, label](LocalCall& local) {
    const LabelRange range = local.range(label[0]);
    c10::List<c10::IValue> list = local.argument("indices").toList().copy();
    const at::Tensor index = list.get(element).toTensor();
    const OwnRows own = own_rows(index.where(index.ge(0), index + range.whole), range);
    list.set(element, own.rows);
    const at::Tensor self = with_a_row(local.tensor("self"), dim);
    local.argument("indices") = list;
    local.argument("self") = self;
    local.run();
    const at::Tensor result = local.result(0).toTensor();
    Sizes sizes = own.elsewhere.sizes().vec();
    sizes.resize(result.dim() - begin, 1);
    result.masked_fill_(own.elsewhere.reshape(sizes), 0);
  };
}

TypedResult index(const OpCall& call) {
  Labels labels;
  auto all = IndexReader(call, labels).read();
  if (!all) return std::nullopt;
  TypedCall operation{.inputs = {all->self}, .outputs = {all->result}, .whole = all->indexed, .terms = {{0}}};
  operation.inputs.insert(operation.inputs.end(), all->indices.begin(), all->indices.end());
  if (all->num_masks > 0) {
    operation.whole += all->positions;
  } else if (all->indices.size() == 1 && all->indexed.size() == 1) {
    const auto element = static_cast<size_t>(call.operand(1).element);
    add_row_kernel(operation, call, all->indexed,
                   reads_own_rows(static_cast<int64_t>(element), element, all->begin, all->indexed));
  }
  return operation;
}

/// A mask of all dims and one value: each element by itself.
bool is_masked_fill(const OpCall& call, const Indexing& all) {
  const int values = call.operand_of("values");
  return all.num_masks == 1 && all.indices.size() == 1 && all.indices[0].size() == all.self.size() &&
         num_elements(call.sizes(values)) == 1;
}

/// Labels of the values, which are broadcast to the result of indexing.
Dims dims_of_values(const OpCall& call, int operand, const Indexing& all, Labels& labels, std::string& whole) {
  const Sizes sizes = call.sizes(operand);
  const size_t skipped = all.result.size() - sizes.size();
  Dims dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::string label = sizes[dim] == 1 ? "" : all.result[skipped + dim];
    if (sizes[dim] != 1 && label.empty()) {
      label = std::string(1, labels.next());
      whole += label;
    }
    dims.push_back(std::move(label));
  }
  return dims;
}

/// Adds values, or puts them: then all of them are needed, since the last one counts.
TypedResult index_put(const OpCall& call) {
  Labels labels;
  const int values = call.operand_of("values");
  auto all = IndexReader(call, labels).read();
  if (!all || values < 0 || call.sizes(values).size() > all->result.size()) return std::nullopt;
  TypedCall operation{.inputs = {all->self}, .outputs = {all->self}, .whole = all->indexed, .terms = {{0}, {values}}};
  if (is_masked_fill(call, *all)) {
    operation.whole.clear();
    all->indices[0] = all->self;
    for (size_t dim = 0; dim < all->self.size(); ++dim) {
      if (call.sizes(1)[dim] != call.sizes(0)[dim]) return std::nullopt;
    }
  }
  operation.inputs.insert(operation.inputs.end(), all->indices.begin(), all->indices.end());
  operation.inputs.push_back(dims_of_values(call, values, *all, labels, operation.whole));
  const bool sums = call.flag("accumulate") && call.operand(0).is_floating && all->num_masks == 0;
  if (!sums) operation.whole += all->positions;
  for (int i = 1; i < values; ++i) operation.terms[1].push_back(i);
  return operation;
}

TypedResult take(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}, .terms = {{0}}};
  operation.outputs = {operation.inputs[1]};
  for (const std::string& dim : operation.inputs[0]) operation.whole += dim;
  return operation;
}

TypedResult put(const OpCall& call) {
  Labels labels;
  TypedCall operation;
  for (size_t i = 0; i < 3; ++i) {
    operation.inputs.push_back(labels.of(call.sizes(i)));
    for (const std::string& dim : operation.inputs[i]) operation.whole += dim;
  }
  operation.outputs = {operation.inputs[0]};
  operation.terms = {{0}, {2}};
  return operation;
}

// ---- bags: means, sums and maxima over rows of a table ----

constexpr int64_t kMaxOfBag = 2;

/// Features are independent; what tells of bags is the same for all features.
TypedResult embedding_bag(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}};
  operation.whole = operation.inputs[0][0];
  for (int i = 1; i < call.num_operands(); ++i) {
    operation.inputs.push_back(labels.of(call.sizes(i)));
    for (const std::string& dim : operation.inputs.back()) operation.whole += dim;
  }
  const std::string feature = operation.inputs[0][1];
  operation.outputs = {{"", feature}, {""}, {""}, {"", feature}};
  operation.whole_outputs = {1, 2};
  if (call.integer("mode") != kMaxOfBag) {
    operation.outputs[3] = {""};
    operation.whole_outputs.push_back(3);
  }
  return operation;
}

TypedResult embedding_bag_dense_backward(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  const std::string feature = operation.inputs[0][1];
  operation.whole = operation.inputs[0][0];
  for (int i = 1; i < call.num_operands(); ++i) {
    Dims dims = labels.of(call.sizes(i));
    const bool is_of_features = call.integer("mode") == kMaxOfBag && i == call.operand_of("maximum_indices");
    if (is_of_features) dims.back() = feature;
    for (const std::string& dim : dims) operation.whole += dim == feature ? "" : dim;
    operation.inputs.push_back(std::move(dims));
  }
  const char row = labels.next();
  operation.whole += row;
  operation.extents[row] = call.integer("num_weights");
  operation.outputs = {{std::string(1, row), feature}};
  return operation;
}

/// Of each row, the product of its gradient and the row: a sum over features.
TypedResult embedding_bag_weights_backward(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}, .terms = {{0, 1}}};
  operation.whole = operation.inputs[0][0] + operation.inputs[1][0];
  operation.inputs[1][1] = operation.inputs[0][1];
  for (int i = 2; i < call.num_operands(); ++i) {
    operation.inputs.push_back(labels.of(call.sizes(i)));
    for (const std::string& dim : operation.inputs.back()) operation.whole += dim;
  }
  operation.outputs = {{""}};
  return operation;
}

}  // namespace

void add_advanced_index_rules(RuleTable& rules) {
  rules.add({"aten::index", "aten::_unsafe_index"}, index);
  rules.add({"aten::index_put", "aten::index_put_", "aten::_index_put_impl", "aten::_index_put_impl_",
             "aten::_unsafe_index_put"},
            index_put);
  rules.add("aten::take", take);
  rules.add({"aten::put", "aten::put_"}, put);
  rules.add({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}, embedding_bag);
  rules.add("aten::_embedding_bag_dense_backward", embedding_bag_dense_backward);
  rules.add("aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward);
}

}  // namespace caravan
