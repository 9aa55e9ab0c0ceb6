#include "caravan/global/solve.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/infer.h"

namespace caravan {
namespace {

/// A placement of one axis: what it does to each operand, and to the op.
struct Candidate {
  std::vector<Cut> operands;
  Cut op;
};

double move_cost(const Cut& from, const Cut& to, double bytes, int n) {
  if (from == to || from.is_whole() || to.is_partial()) return 0;
  if (from.is_partial()) return to.is_whole() ? 2.0 * (n - 1) / n * bytes : 1.0 * (n - 1) / n * bytes;
  return to.is_whole() ? (n - 1) * bytes : 1.0 * (n - 1) / n * bytes;
}

class Solver {
 public:
  Solver(const TypedCall& operation, const std::vector<GlobalOperand>& operands, const AxisPlaces& places,
         const std::vector<std::string>& axes, const SolveOptions& options)
      : operation_(operation), operands_(operands), places_(places), axes_(axes), options_(options) {
    op_.inputs = operation.inputs;
    op_.outputs = operation.outputs;
    op_.terms = operation.terms;
    op_.extents = operation.extents;
    for (const char label : operation.whole) {
      if (operation.kernel_labels.find(label) == std::string::npos) op_.whole += label;
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t dim = 0; dim < op_.inputs[i].size(); ++dim) {
        if (op_.inputs[i][dim].size() == 1) op_.extents.emplace(op_.inputs[i][dim][0], operands[i].sizes[dim]);
      }
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      current_.push_back(cuts_of(*operands[i].layout, op_.inputs[i], op_.extents, places));
    }
    for (const int i : operation.overwritten) op_.inputs[i].clear();  // no part of what infer checks
    for (const int i : operation.unread) {
      for (AxisCut& each : current_[i]) {
        if (!each.cut.is_partial()) continue;
        unread_sums_.emplace_back(i, each.axis);
        each.cut = Cut{};
      }
    }
  }

  std::optional<Placing> solve() {
    for (size_t attempt = 0; attempt <= barred_.size(); ++attempt) {
      chosen_.clear();
      for (const std::string& axis : axes_) {
        auto best = best_on(axis);
        if (!best) return std::nullopt;
        chosen_.push_back(std::move(*best));
      }
      if (auto placing = assemble()) return placing;
    }
    return std::nullopt;
  }

 private:
  const Cut& current(size_t operand, const std::string& axis) const {
    return std::ranges::find(current_[operand], axis, &AxisCut::axis)->cut;
  }

  std::optional<Candidate> best_on(const std::string& axis) {
    std::optional<Candidate> best;
    double least = 0;
    for (Candidate& candidate : candidates(axis)) {
      for (size_t i = 0; i < operation_.overwritten.size(); ++i) {
        const size_t output = operation_.overwritten.size() == op_.outputs.size() ? i : 0;
        const int written = operation_.overwritten[i];
        candidate.operands[written] =
            op_.outputs.empty() ? element_cut(candidate.op, written) : output_cut(candidate.op, output);
      }
      const auto cost = cost_of(candidate, axis);
      if (!cost || (best && *cost >= least)) continue;
      least = *cost;
      best = std::move(candidate);
    }
    return best;
  }

  Cut output_cut(const Cut& op, size_t output) const {
    if (op.is_partial() && is_in(operation_.constant_outputs, output)) return Cut{};
    if (!op.is_label() || has_label(operation_.outputs.at(output), op.label)) return op;
    return is_given_whole(output, op.label) ? Cut{} : Cut{Cut::Kind::partial};
  }

  /// What an op that returns nothing writes.
  Cut element_cut(const Cut& op, int operand) const {
    return op.is_label() && !has_label(operation_.inputs[operand], op.label) ? Cut{Cut::Kind::partial} : op;
  }

  static bool is_in(const std::vector<int>& numbers, size_t i) {
    return std::ranges::find(numbers, static_cast<int>(i)) != numbers.end();
  }

  bool is_given_whole(size_t output, char label) const {
    return is_in(operation_.whole_outputs, output) &&
           (operation_.kernel_labels.empty() || operation_.kernel_labels.find(label) != std::string::npos);
  }

  /// In the order of preference among those that cost the same.
  std::vector<Candidate> candidates(const std::string& axis) {
    std::vector<Candidate> all;
    std::vector<Cut> seen;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Cut& cut = current(i, axis);
      if (!cut.is_label() || std::ranges::find(seen, cut) != seen.end()) continue;
      seen.push_back(cut);
      if (op_.whole.find(cut.label) != std::string::npos || is_barred(axis, cut.label)) continue;
      if (is_storage(i, axis)) {
        seen.pop_back();  // another operand may have the same cut
        continue;
      }
      add_along(all, cut, axis);
    }
    all.push_back({std::vector<Cut>(operands_.size()), Cut{}});
    add_through_terms(all, axis);
    return all;
  }

  /// A parameter that a data axis shards is gathered where it meets data: nothing is computed in its parts.
  bool is_storage(size_t operand, const std::string& axis) const {
    if (!operands_[operand].is_parameter || std::ranges::find(options_.data_axes, axis) == options_.data_axes.end())
      return false;
    return std::ranges::any_of(operands_,
                               [](const GlobalOperand& other) { return !other.is_parameter && !other.sizes.empty(); });
  }

  void add_along(std::vector<Candidate>& all, const Cut& cut, const std::string& axis) {
    Candidate candidate{std::vector<Cut>(operands_.size()), cut};
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (has_label(op_.inputs[i], cut.label)) candidate.operands[i] = cut;
    }
    const bool is_summed = this->is_summed(cut);
    for (const std::vector<int>& term : op_.terms) {
      const bool sums = std::ranges::any_of(term, [&](int i) { return has_label(op_.inputs[i], cut.label); });
      if (is_summed && !sums) candidate.operands[summand_of(term, axis)] = Cut{Cut::Kind::partial};
    }
    all.push_back(std::move(candidate));
  }

  /// The operand of a term that is a partial sum, else the first.
  int summand_of(const std::vector<int>& term, const std::string& axis) const {
    const auto partial = std::ranges::find_if(term, [&](int i) { return current(i, axis).is_partial(); });
    return partial == term.end() ? term.front() : *partial;
  }

  void add_through_terms(std::vector<Candidate>& all, const std::string& axis) {
    const auto is_partial = [&](int i) { return current(i, axis).is_partial(); };
    const bool any =
        std::ranges::any_of(op_.terms, [&](const auto& term) { return std::ranges::any_of(term, is_partial); });
    if (!any) return;
    Candidate candidate{std::vector<Cut>(operands_.size()), Cut{Cut::Kind::partial}};
    for (const std::vector<int>& term : op_.terms) candidate.operands[summand_of(term, axis)] = Cut{Cut::Kind::partial};
    all.push_back(std::move(candidate));
  }

  /// Nothing if the candidate is not legal.
  std::optional<double> cost_of(const Candidate& candidate, const std::string& axis) const {
    const int n = places_.find(axis)->second.size;
    double cost = 0;
    bool moves_activation = false;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Cut& from = current(i, axis);
      // A slice of it, or a summand of its own value, may take its place: gradients that are added to earlier ones wait
      // for one collective.
      const bool may_move = operands_[i].may_move && from.is_whole();
      const bool stays = operands_[i].is_written && !options_.moves_written && !may_move;
      if (stays && !(from == candidate.operands[i])) return std::nullopt;
      const double weight = operands_[i].is_parameter ? 1e-3 : 1;
      const double move = move_cost(from, candidate.operands[i], static_cast<double>(operands_[i].piece_bytes), n);
      moves_activation = moves_activation || (move > 0 && from.is_label() && !operands_[i].is_parameter);
      cost += weight * move;
    }
    if (!is_legal(candidate, axis) || !writes_alike(candidate) || sums_places(candidate)) return std::nullopt;
    if (candidate.op.is_partial() || (moves_activation && is_summed(candidate.op))) cost += pending_cost(axis, n);
    return cost;
  }

  /// Ints in a product with what is no int are places or masks, whose summands mean nothing.
  bool sums_places(const Candidate& candidate) const {
    return std::ranges::any_of(op_.terms, [&](const std::vector<int>& term) {
      const bool has_amounts = std::ranges::any_of(term, [&](int i) { return operands_[i].is_floating; });
      return has_amounts && std::ranges::any_of(term, [&](int i) {
               return candidate.operands[i].is_partial() && !operands_[i].is_floating;
             });
    });
  }

  bool is_summed(const Cut& op) const {
    return op.is_label() &&
           std::ranges::none_of(op_.outputs, [&](const Dims& dims) { return has_label(dims, op.label); });
  }

  /// What is written to an operand lies as the operand: a sum that is pending would count as whole.
  bool writes_alike(const Candidate& candidate) const {
    std::vector<size_t> written;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const bool is_in_schema = std::ranges::find(operation_.written, static_cast<int>(i)) == operation_.written.end();
      if (operands_[i].is_written && is_in_schema) written.push_back(i);
    }
    for (size_t i = 0; i < written.size(); ++i) {
      if (std::ranges::find(operation_.overwritten, static_cast<int>(written[i])) != operation_.overwritten.end()) {
        continue;
      }
      const Cut& own = candidate.operands[written[i]];
      if (op_.outputs.empty()) {  // an op on lists
        const bool is_summed = candidate.op.is_label() && !has_label(op_.inputs[written[i]], candidate.op.label);
        if (!((is_summed ? Cut{Cut::Kind::partial} : candidate.op) == own)) return false;
        continue;
      }
      const size_t output = written.size() == op_.outputs.size() ? i : 0;
      if (!(output_cut(candidate.op, output) == own)) return false;
    }
    return true;
  }

  /// A partial result is summed later, and each of several outputs by itself. Of equal costs, that of summing now is
  /// the larger one unless something whole is added.
  double pending_cost(const std::string& axis, int n) const {
    const bool is_mixed = std::ranges::any_of(op_.terms, [&](const std::vector<int>& term) {
      return std::ranges::none_of(term, [&](int i) { return current(i, axis).is_partial() || operands_[i].may_move; });
    });
    constexpr double kTie = 1e-6;  // so little that no output's bytes are outweighed
    return 2.0 * (n - 1) / n * output_bytes() * (is_mixed ? 1 + kTie : 1 - kTie);
  }

  double output_bytes() const {
    double bytes = 0;
    for (const Dims& dims : op_.outputs) {
      double elements = 1;
      for (const std::string& dim : dims) {
        for (const char label : dim) {
          const auto extent = op_.extents.find(label);
          if (extent != op_.extents.end()) elements *= static_cast<double>(extent->second);
        }
      }
      bytes += elements;
    }
    const double elements =
        std::accumulate(operands_.front().sizes.begin(), operands_.front().sizes.end(), 1.0, std::multiplies<>());
    return bytes * (elements > 0 ? static_cast<double>(operands_.front().piece_bytes) / elements : 0);
  }

  bool is_legal(const Candidate& candidate, const std::string& axis) const {
    std::vector<Operand> placements;
    std::vector<Cut> cuts = candidate.operands;
    for (const int i : operation_.overwritten) cuts[i] = Cut{};
    for (size_t i = 0; i < operands_.size(); ++i) placements.push_back({placement_text(cuts[i], i)});
    try {
      return infer_cut(op_, cuts, placements, axis) == candidate.op;
    } catch (const LayoutError&) {
      return false;
    }
  }

  /// A placement of the same kind: infer looks at the cuts.
  Placement placement_text(const Cut& cut, size_t operand) const {
    if (cut.is_partial()) return Partial{};
    if (!cut.is_label()) return Replicate{};
    return Shard{position_of(op_.inputs[operand], cut.label)->first};
  }

  /// Axes that cut one label in the order in which an operand has them already.
  std::vector<size_t> order() const {
    std::vector<size_t> order(axes_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (const auto& cuts : current_) {
      std::map<char, std::vector<size_t>> same;
      for (const AxisCut& each : cuts) {
        const auto axis = static_cast<size_t>(std::ranges::find(axes_, each.axis) - axes_.begin());
        if (each.cut.is_label() && chosen_[axis].op == each.cut) same[each.cut.label].push_back(axis);
      }
      for (const auto& [label, axes] : same) {
        if (axes.size() < 2) continue;
        std::vector<size_t> result = axes;
        for (const size_t axis : order) {
          if (std::ranges::find(axes, axis) == axes.end()) result.push_back(axis);
        }
        return result;
      }
    }
    return order;
  }

  /// Each axis has chosen by itself: bars a label that its axes cannot cut together, and returns false.
  bool fit_together(const std::vector<size_t>& order) {
    std::map<char, std::vector<size_t>> all;
    for (const size_t axis : order) {
      if (chosen_[axis].op.is_label()) all[chosen_[axis].op.label].push_back(axis);
    }
    for (const auto& [label, axes] : all) {
      if (is_cut_so(label, axes) || divides(label, axes)) continue;
      barred_.emplace_back(axes_[axes.back()], label);
      return false;
    }
    return true;
  }

  /// Whether an operand has the label cut by these axes and no others now.
  bool is_cut_so(char label, const std::vector<size_t>& axes) const {
    return std::ranges::any_of(current_, [&](const std::vector<AxisCut>& cuts) {
      size_t found = 0;
      for (const AxisCut& each : cuts) {
        if (!each.cut.is_label() || each.cut.label != label) continue;
        const auto axis = static_cast<size_t>(std::ranges::find(axes_, each.axis) - axes_.begin());
        if (std::ranges::find(axes, axis) == axes.end() || !(chosen_[axis].op == each.cut)) return false;
        ++found;
      }
      return found == axes.size();
    });
  }

  /// Whether parts of this label are even, or of one axis with sizes for all elements. Not by this rank's part, so that
  /// all ranks find the same.
  bool divides(char label, const std::vector<size_t>& axes) const {
    const auto extent = op_.extents.find(label);
    if (extent == op_.extents.end()) return true;
    int64_t parts = 1;
    for (const size_t axis : axes) {
      const Cut& cut = chosen_[axis].op;
      if (axes.size() == 1 && cut.owner >= 0) return cut.rows < 0 || cut.rows == extent->second;
      if (axes.size() == 1 && !cut.sizes.empty()) {
        return std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0}) * cut.blocks == extent->second;
      }
      if (cut.owner >= 0 || !cut.sizes.empty()) return false;
      parts *= static_cast<int64_t>(places_.find(axes_[axis])->second.size) * cut.blocks;
    }
    return extent->second % parts == 0;
  }

  std::optional<Placing> assemble() {
    const std::vector<size_t> order = this->order();
    if (!fit_together(order)) return std::nullopt;
    Placing placing;
    placing.extents = op_.extents;
    for (const size_t axis : order) placing.cuts.push_back({axes_[axis], chosen_[axis].op});
    for (size_t i = 0; i < operands_.size(); ++i) {
      std::vector<AxisCut> cuts;
      for (const size_t axis : order) {
        cuts.push_back({axes_[axis], chosen_[axis].operands[i]});
        if (cuts.back().cut.is_whole() && has_unread_sum(i, axes_[axis])) cuts.back().cut = Cut{Cut::Kind::partial};
      }
      if (!add_layout(placing.operands, cuts, operation_.inputs[i])) return std::nullopt;
    }
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      std::vector<AxisCut> cuts = placing.cuts;
      for (AxisCut& each : cuts) each.cut = output_cut(each.cut, i);
      if (!add_layout(placing.outputs, cuts, op_.outputs[i])) return std::nullopt;
    }
    return placing;
  }

  /// Bars a label that cannot be cut so, and returns false.
  bool add_layout(std::vector<Layout>& layouts, const std::vector<AxisCut>& cuts, const Dims& dims) {
    if (auto layout = layout_of(cuts, dims, op_.extents, places_)) {
      layouts.push_back(std::move(*layout));
      return true;
    }
    for (const AxisCut& each : cuts) {
      if (each.cut.is_label() && !is_barred(each.axis, each.cut.label)) {
        barred_.emplace_back(each.axis, each.cut.label);
        break;
      }
    }
    return false;
  }

  bool has_unread_sum(size_t operand, const std::string& axis) const {
    return std::ranges::find(unread_sums_, std::pair(static_cast<int>(operand), axis)) != unread_sums_.end();
  }

  bool is_barred(const std::string& axis, char label) const {
    return std::ranges::find(barred_, std::pair(axis, label)) != barred_.end();
  }

  const TypedCall& operation_;
  const std::vector<GlobalOperand>& operands_;
  const AxisPlaces& places_;
  const std::vector<std::string>& axes_;
  const SolveOptions& options_;
  LabelledOp op_;
  std::vector<std::vector<AxisCut>> current_;
  std::vector<Candidate> chosen_;
  std::vector<std::pair<std::string, char>> barred_;
  std::vector<std::pair<int, std::string>> unread_sums_;  ///< operands and axes
};

}  // namespace

std::optional<Placing> solve(const TypedCall& operation, const std::vector<GlobalOperand>& operands,
                             const AxisPlaces& places, const std::vector<std::string>& axes,
                             const SolveOptions& options) {
  if (operands.empty()) return Placing{{}, std::vector<Layout>(operation.outputs.size()), {}, operation.extents};
  return Solver(operation, operands, places, axes, options).solve();
}

}  // namespace caravan
