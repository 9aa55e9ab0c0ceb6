#include "caravan/redistribute/infer.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// Equal cuts, or cuts into the same fractions: labels of different extents are heads of queries and of keys, of which
/// equal parts, without sizes, are the same cut too.
bool are_same(const Cut& a, const Cut& b) {
  if (a == b) return true;
  Cut scaled = b;
  scaled.sizes = a.sizes;
  if (!(a == scaled) || a.sizes.size() != b.sizes.size()) return false;
  const int64_t all_of_a = std::accumulate(a.sizes.begin(), a.sizes.end(), int64_t{0});
  const int64_t all_of_b = std::accumulate(b.sizes.begin(), b.sizes.end(), int64_t{0});
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.sizes[i] * all_of_b != b.sizes[i] * all_of_a) return false;
  }
  return true;
}

/// The rule on one axis.
class Rule {
 public:
  Rule(const LabelledOp& op, std::span<const Cut> cuts, std::span<const Operand> operands, std::string_view axis)
      : op_(op), cuts_(cuts), operands_(operands), axis_(axis) {}

  Cut output() const {
    const int invariant = first([&](int i) { return at(i).is_invariant() && !operands_[i].is_constant; });
    if (invariant >= 0) {
      const int other =
          first([&](int i) { return operands_[i].is_constant ? !at(i).is_whole() : !at(i).is_invariant(); });
      if (other >= 0) refuse_invariant(invariant, other);
      return {Cut::Kind::invariant};
    }
    const int between = first([&](int i) { return cuts_[i].kind == Cut::Kind::between; });
    if (between >= 0) refuse_between(between);
    const int shard = first([&](int i) { return at(i).is_shard(); });
    if (shard >= 0) return along_label(shard);
    const int partial = first([&](int i) { return at(i).is_partial(); });
    return partial >= 0 ? through_terms(partial) : Cut{Cut::Kind::replicate};
  }

 private:
  int count() const { return static_cast<int>(operands_.size()); }
  const Placement& at(int i) const { return operands_[i].placement; }
  std::string name(int i) const { return fmt::format("operand {} ({})", i, at(i).to_string()); }
  bool has(int i, char label) const { return has_label(op_.inputs[i], label); }

  template <typename Claim>
  int first(const Claim& claim) const {
    for (int i = 0; i < count(); ++i) {
      if (claim(i)) return i;
    }
    return -1;
  }

  [[noreturn]] void refuse(const std::string& fact, const std::string& action) const {
    std::vector<std::string> placements;
    for (const Operand& operand : operands_) placements.push_back(operand.placement.to_string());
    throw LayoutError({"infer", "op " + op_.text, fact,
                       (axis_.empty() ? "" : fmt::format("axis {}, ", axis_)) + "operands " + join(placements),
                       action});
  }

  [[noreturn]] void refuse_between(int i) const {
    refuse(fmt::format("{} cuts '{}' between its labels", name(i), op_.inputs[i][at(i).dim()]),
           fmt::format("redistribute operand {} {} -> R first", i, at(i).to_string()));
  }

  [[noreturn]] void refuse_invariant(int i, int other) const {
    const bool is_summed = at(other).is_partial() && are_added(i, other);
    refuse(fmt::format("{} meets {}: I mixes with nothing but I, since with other data each rank's gradient of it is a "
                       "mere contribution, and I promises the total",
                       name(i), name(other)),
           is_summed ? fmt::format("redistribute operand {} I -> P first (free, added once)", i)
                     : fmt::format("redistribute operand {} I -> R first; its gradient is then summed in backward", i));
  }

  /// The term that has operand `i`, or -1.
  int term_of(int i) const {
    for (size_t term = 0; term < op_.terms.size(); ++term) {
      if (std::ranges::find(op_.terms[term], i) != op_.terms[term].end()) return static_cast<int>(term);
    }
    return -1;
  }
  bool are_added(int i, int j) const { return term_of(i) >= 0 && term_of(j) >= 0 && term_of(i) != term_of(j); }

  [[noreturn]] void refuse_partial_and_shard(int partial, int shard) const {
    const auto dim = position_of(op_.inputs[partial], cuts_[shard].label);
    refuse(fmt::format("{} meets {} on one axis", name(partial), name(shard)),
           fmt::format("redistribute operand {} P -> {} first", partial, dim ? fmt::format("S({})", dim->first) : "R"));
  }

  [[noreturn]] void refuse_added(int whole, int partial) const {
    refuse(fmt::format("{} is added to {}: it would be added once per rank", name(whole), name(partial)),
           fmt::format("redistribute operand {} {} -> P (free), or operand {} P -> R, first", whole,
                       at(whole).to_string(), partial));
  }

  [[noreturn]] void refuse_added_to_sum(int whole, int shard) const {
    refuse(fmt::format("{} is added to a sum over '{}', of which each rank has a part: it would be added once per rank",
                       name(whole), cuts_[shard].label),
           fmt::format("redistribute operand {} {} -> P (free) first", whole, at(whole).to_string()));
  }

  Cut through_terms(int partial) const {
    std::vector<int> partials;
    for (int i = 0; i < count(); ++i) {
      if (at(i).is_partial()) partials.push_back(i);
    }
    const auto is_partial = [&](int i) { return at(i).is_partial(); };
    if (term_of(partial) >= 0) {
      for (const std::vector<int>& term : op_.terms) {
        if (std::ranges::none_of(term, is_partial)) refuse_added(term.front(), partial);
      }
    }
    if (std::ranges::all_of(partials, [&](int i) { return term_of(i) >= 0; }) &&
        std::ranges::all_of(op_.terms,
                            [&](const auto& term) { return std::ranges::count_if(term, is_partial) == 1; })) {
      return {Cut::Kind::partial};
    }
    if (partials.size() > 1) {
      refuse(fmt::format("{} meets {}: the op of the sums is not the sum of the ops", name(partials[0]),
                         name(partials[1])),
             fmt::format("redistribute operand {} P -> R first", partials[1]));
    }
    refuse(fmt::format("{}, but the op is not linear in it", name(partial)),
           fmt::format("redistribute operand {} P -> R (or P -> S) first", partial));
  }

  Cut along_label(int shard) const {
    const Cut& cut = cuts_[shard];
    int64_t rows = -1;
    for (int i = 0; i < count(); ++i) {
      if (at(i).is_shard()) check_same_shard(shard, i);
      if (at(i).is_shard()) rows = std::max(rows, cuts_[i].rows);
    }
    check_partials(shard);
    if (op_.whole.find(cut.label) != op_.whole.npos) {
      refuse(fmt::format("{} shards '{}', of which the op needs all", name(shard), cut.label),
             fmt::format("redistribute operand {} {} -> R, or to a shard of another dim, first", shard,
                         at(shard).to_string()));
    }
    const int whole = first([&](int i) { return !at(i).is_shard() && has(i, cut.label); });
    if (whole >= 0) {
      const Placement& from = at(shard);
      Shard slice{position_of(op_.inputs[whole], cut.label)->first, from.sizes(), from.owner(), -1, from.blocks()};
      refuse(fmt::format("'{}' is sharded in {} and whole in {}", cut.label, name(shard), name(whole)),
             fmt::format("redistribute operand {} {} -> {} (a slice, free), or gather operand {}, first", whole,
                         at(whole).to_string(), Placement(std::move(slice)).to_string(), shard));
    }
    Cut output = cut;
    output.rows = rows;
    return output;
  }

  /// A sum over the label makes each rank's output a summand: the terms without the label must be summands too.
  void check_partials(int shard) const {
    const char label = cuts_[shard].label;
    const int partial = first([&](int i) { return at(i).is_partial(); });
    const bool is_summed = std::ranges::none_of(op_.outputs, [&](const Dims& dims) { return has_label(dims, label); });
    if (partial >= 0 && (!is_summed || term_of(partial) < 0)) refuse_partial_and_shard(partial, shard);
    for (const std::vector<int>& term : op_.terms) {
      const bool sums = std::ranges::any_of(term, [&](int i) { return has(i, label); });
      const auto summand = std::ranges::find_if(term, [&](int i) { return at(i).is_partial(); });
      if (sums && summand != term.end()) refuse_partial_and_shard(*summand, shard);
      if (is_summed && !sums && summand == term.end() && term_of(shard) >= 0) refuse_added_to_sum(term.front(), shard);
      if (std::ranges::count_if(term, [&](int i) { return at(i).is_partial(); }) > 1) {
        refuse_partial_and_shard(*summand, shard);
      }
    }
  }

  void check_same_shard(int a, int b) const {
    if (cuts_[a].label != cuts_[b].label) {
      refuse(fmt::format("the axis shards '{}' in {} and '{}' in {}", cuts_[a].label, name(a), cuts_[b].label, name(b)),
             fmt::format("redistribute operand {} {} -> R first", b, at(b).to_string()));
    }
    if (are_same(cuts_[a], cuts_[b])) return;
    Shard same{at(b).dim(), at(a).sizes(), at(a).owner(), -1, at(a).blocks()};
    refuse(fmt::format("'{}' is split differently in {} and {}", cuts_[a].label, name(a), name(b)),
           fmt::format("redistribute operand {} {} -> {} first", b, at(b).to_string(),
                       Placement(std::move(same)).to_string()));
  }

  const LabelledOp& op_;
  std::span<const Cut> cuts_;
  std::span<const Operand> operands_;
  std::string_view axis_;
};

/// Throws LayoutError for a shard of a dim that an operand does not have.
void check_dims(const LabelledOp& op, std::span<const Operand> operands, std::string_view axis) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Placement& placement = operands[i].placement;
    if (!placement.is_shard() || placement.dim() < static_cast<int>(op.inputs[i].size())) continue;
    throw LayoutError({"infer", "op " + op.text,
                       fmt::format("operand {} ({}) has {} dims", i, placement.to_string(), op.inputs[i].size()),
                       axis.empty() ? "" : fmt::format("axis {}", axis), "shard a dim that is there"});
  }
}

/// The axes that shard each label, major first; those of all operands must agree.
using Orders = std::map<char, std::vector<std::string>>;

void check_order(Orders& orders, const OpType& op, const Layout& layout, std::span<const AxisCut> cuts,
                 size_t operand) {
  Orders own;
  for (const AxisCut& each : cuts) {
    if (each.cut.is_label()) own[each.cut.label].push_back(each.axis);
  }
  for (const auto& [label, axes] : own) {
    const auto& known = orders.emplace(label, axes).first->second;
    if (known == axes) continue;
    throw LayoutError({"infer", "op " + op.labels,
                       fmt::format("'{}' is cut by axes {} in that order in one operand, by {} in operand {}", label,
                                   join(known), join(axes), operand),
                       "operand " + std::to_string(operand) + " " + layout.to_string(),
                       fmt::format("redistribute operand {} so that '{}' is cut by {}", operand, label, join(known))});
  }
}

/// All axes of the operands in the order of the first that names each, those that cut a label in the order of `orders`.
std::vector<std::string> axes_of(std::span<const Layout> operands, const Orders& orders) {
  std::vector<std::string> axes;
  const auto add = [&](const std::string& axis) {
    if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
  };
  for (const auto& [label, ordered] : orders) std::ranges::for_each(ordered, add);
  for (const Layout& operand : operands) {
    for (const auto& [axis, placement] : operand.entries()) add(axis);
  }
  return axes;
}

const Cut* cut_on(std::span<const AxisCut> cuts, std::string_view axis) {
  const auto found = std::ranges::find(cuts, axis, &AxisCut::axis);
  return found == cuts.end() ? nullptr : &found->cut;
}

/// The cuts of one output: a label that it does not have is a partial sum.
std::vector<AxisCut> cuts_of_output(std::span<const AxisCut> cuts, const Dims& dims) {
  std::vector<AxisCut> own(cuts.begin(), cuts.end());
  for (AxisCut& each : own) {
    if (each.cut.is_label() && !has_label(dims, each.cut.label)) each.cut = {Cut::Kind::partial};
  }
  return own;
}

}  // namespace

Cut infer_cut(const LabelledOp& op, std::span<const Cut> cuts, std::span<const Operand> operands,
              std::string_view axis) {
  return Rule(op, cuts, operands, axis).output();
}

Placement infer(const OpType& op, std::span<const Operand> operands) {
  std::vector<Layout> layouts;
  std::vector<bool> constant;
  for (const Operand& operand : operands) {
    layouts.push_back(Layout({{"", operand.placement}}));
    constant.push_back(operand.is_constant);
  }
  const Layout output = infer(op, layouts, constant);
  return output.empty() ? Placement(Replicate{}) : output.entries().front().second;
}

Layout infer(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant) {
  return infer_outputs(op, operands, constant).front();
}

std::vector<Layout> infer_outputs(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant,
                                  const AxisPlaces& places) {
  const LabelledOp labelled(op, operands.size());
  if (!constant.empty() && constant.size() != operands.size()) {
    throw UsageError(
        {"infer", "op " + op.labels,
         fmt::format("has {} operands, {} are said to be constant or not", operands.size(), constant.size()), "",
         "say it of each operand"});
  }
  const auto on_axis = [&](const std::string& axis) {
    std::vector<Operand> all;
    for (size_t i = 0; i < operands.size(); ++i) all.push_back({operands[i][axis], !constant.empty() && constant[i]});
    return all;
  };
  for (const std::string& axis : axes_of(operands, {})) check_dims(labelled, on_axis(axis), axis);
  std::vector<std::vector<AxisCut>> cuts;
  Orders orders;
  for (size_t i = 0; i < operands.size(); ++i) {
    cuts.push_back(cuts_of(operands[i], labelled.inputs[i], labelled.extents, places));
  }
  std::vector<AxisCut> outputs;
  for (const std::string& axis : axes_of(operands, {})) {
    std::vector<Cut> each;
    for (size_t i = 0; i < operands.size(); ++i) each.push_back(*cut_on(cuts[i], axis));
    outputs.push_back({axis, infer_cut(labelled, each, on_axis(axis), axis)});
  }
  for (size_t i = 0; i < operands.size(); ++i) check_order(orders, op, operands[i], cuts[i], i);
  std::vector<AxisCut> ordered;
  for (const std::string& axis : axes_of(operands, orders)) ordered.push_back({axis, *cut_on(outputs, axis)});
  std::vector<Layout> layouts;
  for (const Dims& dims : labelled.outputs) {
    auto layout = layout_of(cuts_of_output(ordered, dims), dims, labelled.extents, places);
    if (!layout) {
      throw LayoutError({"infer", "op " + op.labels, "two axes cut a dim of several labels unevenly", "",
                         "cut one of the labels evenly"});
    }
    layouts.push_back(std::move(*layout));
  }
  return layouts;
}

}  // namespace caravan
