#include "caravan/global/planning.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/global/rules/rules.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

std::map<char, int64_t> local_extents(const Placing& placing, const GlobalState& state) {
  std::map<char, int64_t> local = placing.extents;
  for (const AxisCut& each : placing.cuts) {
    if (!each.cut.is_label()) continue;
    const MeshAxis& axis = state.mesh()[each.axis];
    int64_t& extent = local[each.cut.label];
    const Placement shard = Shard{0, each.cut.sizes, each.cut.owner, each.cut.rows, each.cut.blocks};
    extent = rows_of(shard, extent, axis.size())[axis.coord()];
  }
  return local;
}

bool is_cut(const Placing& placing, const std::string& dim) {
  return std::ranges::any_of(placing.cuts, [&](const AxisCut& each) {
    return each.cut.is_label() && dim.find(each.cut.label) != std::string::npos;
  });
}

int64_t extent_of(const std::string& dim, const std::map<char, int64_t>& extents) {
  int64_t product = 1;
  for (const char label : dim) product *= extents.at(label);
  return product;
}

bool is_known(const std::string& dim, const std::map<char, int64_t>& extents) {
  return std::ranges::all_of(dim, [&](char label) { return extents.contains(label); });  // without a label: 1
}

std::vector<std::pair<int, int64_t>> cut_dims(const Dims& dims, const Placing& placing) {
  std::vector<std::pair<int, int64_t>> cut;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if (is_cut(placing, dims[dim])) cut.emplace_back(static_cast<int>(dim), extent_of(dims[dim], placing.extents));
  }
  return cut;
}

/// Sizes as an argument, on this rank.
c10::IValue local_value(const c10::IValue& value, const Dims& dims, const Placing& placing,
                        const std::map<char, int64_t>& local) {
  if (value.isInt()) return is_cut(placing, dims[0]) ? c10::IValue(extent_of(dims[0], local)) : value;
  c10::List<int64_t> sizes;
  const auto given = value.toListRef();
  for (size_t dim = 0; dim < given.size(); ++dim) {
    const int64_t size = given[dim].toInt();
    // A piece without elements does not tell what -1 stands for.
    const bool is_local =
        dim < dims.size() && (is_cut(placing, dims[dim]) || (size == -1 && is_known(dims[dim], local)));
    sizes.push_back(is_local ? extent_of(dims[dim], local) : size);
  }
  return sizes;
}

/// Why an operand was gathered on an axis on which nothing of the op is cut; "" if none was. Parameters that rest in
/// shards on a data axis are meant to be.
std::string reason_whole(const Placing& placing, const std::vector<GlobalOperand>& operands,
                         const std::vector<std::string>& data_axes) {
  for (const AxisCut& each : placing.cuts) {
    if (!each.cut.is_whole()) continue;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Placement& from = (*operands[i].layout)[each.axis];
      const bool rests = operands[i].is_parameter && std::ranges::find(data_axes, each.axis) != data_axes.end();
      if (!from.is_shard() || rests) continue;
      return fmt::format("needs all of dim {} of operand {}, which axis {} cuts", from.dim(), i, each.axis);
    }
  }
  return "";
}

void refuse_whole(const OpInfo& info, const std::string& why, const std::vector<GlobalOperand>& operands,
                  const GlobalState& state) {
  const auto& allowed = state.options().may_run_whole;
  if (!state.options().is_strict || std::ranges::find(allowed, info.name) != allowed.end()) return;
  std::vector<std::string> layouts;
  for (const GlobalOperand& operand : operands) {
    layouts.push_back(shape_text(operand.sizes.data(), operand.sizes.size()) + " " + operand.layout->to_string());
  }
  throw UsageError({"global", info.name, why + ": it would run on whole tensors, and is_strict forbids that",
                    state.mesh().where() + ", operands " + join(layouts),
                    "redistribute the operand first, write a rule (register_rule), or add the op to may_run_whole"});
}

/// A sum passes a change of dtype if that keeps fractions and sums: the sum of what is rounded is something else.
bool keeps_sums(at::ScalarType from, at::ScalarType to) {
  if (to == at::kBool) return from == at::kBool;
  if (c10::isComplexType(from)) return c10::isComplexType(to);
  return !c10::isFloatingType(from) || !c10::isIntegralType(to, /*includeBool=*/true);
}

/// No sum goes through a change of dtype that does not keep it.
void drop_terms_of_casts(const OpCall& call, TypedCall& operation) {
  std::vector<at::ScalarType> results;
  if (call.has("dtype")) results.push_back(call.value("dtype").toScalarType());
  for (const GlobalOperand& operand : call.operands()) {
    if (operand.is_written && !call.schema().arguments()[operand.argument].is_out()) results.push_back(operand.dtype);
  }
  for (const std::vector<int>& term : operation.terms) {
    for (const int i : term) {
      const at::ScalarType from = call.operand(i).dtype;
      if (std::ranges::all_of(results, [&](at::ScalarType to) { return keeps_sums(from, to); })) continue;
      operation.terms.clear();
      return;
    }
  }
}

class Planner {
 public:
  Planner(const c10::OperatorHandle& op, const OpInfo& info, const c10::IValue* arguments, GlobalState& state)
      : op_(op), info_(info), arguments_(arguments), state_(state), solution_(std::make_shared<Solution>()) {}

  std::shared_ptr<const Solution> plan(std::vector<GlobalOperand> operands) {
    const OpCall call(op_, arguments_, operands);
    if (is_foreach(info_.name) && info_.rule == nullptr) {
      // It returns a list of numbers too.
      if (info_.name.starts_with("aten::_fused_adagrad") && !info_.returns.empty())
        return plan_whole(operands, "has no rule");
      return plan_each(call);
    }
    std::optional<TypedCall> operation;
    if (info_.rule != nullptr) operation = (*info_.rule)(call);
    if (info_.rule == nullptr && is_pointwise(op_)) operation = pointwise(call);
    if (!operation) {
      refuse_draws(op_, arguments_);
      return plan_whole(operands, "has no rule");
    }
    if (!add_outs(*operation, call))
      return plan_whole(operands, "has no placement for an argument out= of other sizes");
    check_operation(*operation, operands);
    drop_terms_of_casts(call, *operation);
    for (const int i : operation->written) operands[i].is_written = true;
    auto placing = operation->layouts ? chosen_layouts(*operation) : place(*operation, operands);
    if (!placing) return plan_whole(operands, "has no placement for these layouts");
    set_operands(placing->operands, operands);
    solution_->why_whole = reason_whole(*placing, operands, state_.options().data_axes);
    if (!solution_->why_whole.empty()) refuse_whole(info_, solution_->why_whole, operands, state_);
    for (size_t i = 0; i < placing->outputs.size(); ++i) {
      solution_->outputs.push_back({state_.intern(placing->outputs[i]), cut_dims(operation->outputs[i], *placing)});
    }
    if (solution_->outputs.empty()) solution_->outputs.push_back({state_.whole(), {}});
    const auto local = local_extents(*placing, state_);
    for (const LocalArgument& each : operation->local_arguments) {
      solution_->arguments.emplace_back(each.argument,
                                        local_value(arguments_[each.argument], each.dims, *placing, local));
    }
    solution_->uses_kernel =
        operation->kernel && (operation->kernel_labels.empty() || is_cut(*placing, operation->kernel_labels));
    solution_->placing = std::move(*placing);
    solution_->operation = std::move(*operation);
    return solution_;
  }

 private:
  /// Operands out= of which the rule says nothing lie as the outputs. False if one has another number of dims.
  static bool add_outs(TypedCall& operation, const OpCall& call) {
    const auto& arguments = call.schema().arguments();
    size_t output = 0;
    for (size_t i = operation.inputs.size(); i < call.operands().size(); ++i) {
      if (!arguments[call.operand(i).argument].is_out() || output == operation.outputs.size()) return true;
      if (operation.outputs[output].size() != call.operand(i).sizes.size()) return false;
      operation.inputs.push_back(operation.outputs[output++]);
      operation.overwritten.push_back(static_cast<int>(i));
    }
    return true;
  }

  static std::optional<Placing> chosen_layouts(const TypedCall& operation) {
    Placing placing;
    placing.operands = operation.layouts->first;
    placing.outputs = operation.layouts->second;
    return placing;
  }

  std::optional<Placing> place(const TypedCall& operation, const std::vector<GlobalOperand>& operands) {
    SolveOptions options{.data_axes = state_.options().data_axes};
    if (auto placing = solve(operation, operands, state_.places(), state_.axes(), options)) return placing;
    if (!info_.writes && operation.written.empty()) return std::nullopt;
    solution_->writes_back = true;
    options.moves_written = true;
    return solve(operation, operands, state_.places(), state_.axes(), options);
  }

  void set_operands(const std::vector<Layout>& layouts, const std::vector<GlobalOperand>& operands) {
    for (size_t i = 0; i < operands.size(); ++i) {
      solution_->operands.push_back(state_.intern(layouts[i]));
      solution_->is_moved.push_back(!(layouts[i] == *operands[i].layout));
      solution_->is_written.push_back(operands[i].is_written);
      if (operands[i].is_written && solution_->is_moved.back()) solution_->writes_back = true;
      solution_->any_moved = solution_->any_moved || solution_->is_moved.back();
    }
  }

  std::shared_ptr<const Solution> plan_whole(const std::vector<GlobalOperand>& operands, const std::string& why) {
    solution_->outputs.clear();
    set_operands(std::vector<Layout>(operands.size(), state_.whole()->layout), operands);
    solution_->outputs.push_back({state_.whole(), {}});
    solution_->writes_back = info_.writes;
    const bool is_sharded = std::ranges::any_of(operands, [&](const GlobalOperand& operand) {
      return std::ranges::any_of(operand.layout->entries(), [](const auto& entry) { return entry.second.is_shard(); });
    });
    if (is_sharded) {
      solution_->why_whole = why;
      refuse_whole(info_, why, operands, state_);
    }
    return solution_;
  }

  /// A number that all elements of lists share is whole for each of them: no summand for one and whole for another.
  static void keep_shared_whole(TypedCall& operation, const std::vector<GlobalOperand>& operands) {
    for (std::vector<int>& term : operation.terms) {
      std::erase_if(term, [&](int i) { return operands[i].element < 0; });
    }
    if (std::ranges::any_of(operation.terms, &std::vector<int>::empty)) operation.terms.clear();
  }

  /// An op on lists of tensors: a pointwise op for each element.
  std::shared_ptr<const Solution> plan_each(const OpCall& call) {
    const std::vector<GlobalOperand>& all = call.operands();
    int num_elements = 0;
    for (const GlobalOperand& operand : all) num_elements = std::max(num_elements, operand.element + 1);
    std::vector<Layout> layouts(all.size(), state_.whole()->layout);
    const bool is_shared = std::ranges::any_of(all, [](const GlobalOperand& each) { return each.element < 0; });
    for (int element = 0; element < num_elements; ++element) {
      std::vector<size_t> chosen;
      std::vector<GlobalOperand> operands;
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].element != element && !(all[i].element < 0 && all[i].sizes.empty())) continue;
        chosen.push_back(i);
        operands.push_back(all[i]);
      }
      const OpCall one(op_, arguments_, operands);
      TypedCall operation = pointwise(one);
      drop_terms_of_casts(one, operation);
      if (is_shared) keep_shared_whole(operation, operands);
      const auto placing = place(operation, operands);
      if (!placing) return plan_whole(all, "has no placement for these layouts");
      for (size_t i = 0; i < chosen.size(); ++i) layouts[chosen[i]] = placing->operands[i];
      const auto cut =
          operation.outputs.empty() ? std::vector<std::pair<int, int64_t>>{} : cut_dims(operation.outputs[0], *placing);
      solution_->outputs.push_back(
          {state_.intern(placing->outputs.empty() ? state_.whole()->layout : placing->outputs[0]), cut});
    }
    if (solution_->outputs.empty()) solution_->outputs.push_back({state_.whole(), {}});
    const std::vector<Solution::Output> one_list = solution_->outputs;
    for (size_t list = 1; list < info_.returns.size(); ++list) {
      solution_->outputs.insert(solution_->outputs.end(), one_list.begin(), one_list.end());
    }
    set_operands(layouts, all);
    return solution_;
  }

  void check_operation(const TypedCall& operation, const std::vector<GlobalOperand>& operands) const {
    bool fits = operation.inputs.size() == operands.size();
    for (size_t i = 0; fits && i < operands.size(); ++i) fits = operation.inputs[i].size() == operands[i].sizes.size();
    if (fits) return;
    throw InternalError({"global", info_.name, "its rule does not fit the operands of this call",
                         fmt::format("{} operands, {} in the rule", operands.size(), operation.inputs.size()),
                         "report this with the call"});
  }

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  const c10::IValue* arguments_;
  GlobalState& state_;
  std::shared_ptr<Solution> solution_;
};

}  // namespace

std::shared_ptr<const Solution> plan_call(const c10::OperatorHandle& op, const OpInfo& info,
                                          const c10::IValue* arguments, std::vector<GlobalOperand> operands,
                                          GlobalState& state) {
  return Planner(op, info, arguments, state).plan(std::move(operands));
}

}  // namespace caravan
