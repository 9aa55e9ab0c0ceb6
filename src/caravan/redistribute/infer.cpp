#include "caravan/redistribute/infer.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

struct Labels {
  std::vector<std::string_view> inputs;
  std::string_view output;
};

[[noreturn]] void refuse_labels(std::string_view labels, const std::string& fact) {
  throw UsageError({"infer", "op " + std::string(labels), fact, "", "write one letter a dim, as in \"bsk,nk->bsn\""});
}

Labels parse(std::string_view labels, size_t num_operands) {
  const size_t arrow = labels.find("->");
  if (arrow == std::string_view::npos) refuse_labels(labels, "has no \"->\"");
  Labels parsed{{}, labels.substr(arrow + 2)};
  std::string_view rest = labels.substr(0, arrow);
  for (size_t comma = rest.find(','); comma != std::string_view::npos; comma = rest.find(',')) {
    parsed.inputs.push_back(rest.substr(0, comma));
    rest.remove_prefix(comma + 1);
  }
  parsed.inputs.push_back(rest);
  if (parsed.inputs.size() != num_operands) {
    refuse_labels(labels, fmt::format("has {} operands, {} were given", parsed.inputs.size(), num_operands));
  }
  std::string known;
  for (const auto& input : parsed.inputs) {
    for (size_t i = 0; i < input.size(); ++i) {
      if (input.find(input[i], i + 1) != input.npos)
        refuse_labels(labels, fmt::format("names '{}' twice in one operand", input[i]));
    }
    known += input;
  }
  for (const char label : parsed.output) {
    if (known.find(label) == known.npos) refuse_labels(labels, fmt::format("makes '{}' from nothing", label));
  }
  return parsed;
}

/// The rule on one axis.
class Rule {
 public:
  Rule(const OpType& op, const Labels& labels, std::span<const Operand> operands, std::string_view axis)
      : op_(op), labels_(labels), operands_(operands), axis_(axis) {}

  Placement output() const {
    for (int i = 0; i < count(); ++i) check_dim(i);
    const int invariant = first([&](int i) { return at(i).is_invariant() && !operands_[i].is_constant; });
    if (invariant >= 0) {
      const int other =
          first([&](int i) { return operands_[i].is_constant ? !at(i).is_whole() : !at(i).is_invariant(); });
      if (other >= 0) refuse_invariant(invariant, other);
      return Invariant{};
    }
    const int partial = first([&](int i) { return at(i).is_partial(); });
    const int shard = first([&](int i) { return at(i).is_shard(); });
    if (partial >= 0 && shard >= 0) refuse_partial_and_shard(partial, shard);
    if (partial >= 0) return through_linear(partial);
    return shard >= 0 ? along_label(shard) : Placement(Replicate{});
  }

 private:
  int count() const { return static_cast<int>(operands_.size()); }
  const Placement& at(int i) const { return operands_[i].placement; }
  char label_of(int i) const { return labels_.inputs[i][at(i).dim()]; }
  std::string name(int i) const { return fmt::format("operand {} ({})", i, at(i).to_string()); }
  /// Where operand `i` has `label`, or -1.
  int position(int i, char label) const {
    const size_t found = labels_.inputs[i].find(label);
    return found == std::string_view::npos ? -1 : static_cast<int>(found);
  }

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
    throw LayoutError({"infer", "op " + std::string(op_.labels), fact,
                       (axis_.empty() ? "" : fmt::format("axis {}, ", axis_)) + "operands " + join(placements),
                       action});
  }

  void check_dim(int i) const {
    if (!at(i).is_shard() || at(i).dim() < static_cast<int>(labels_.inputs[i].size())) return;
    refuse(fmt::format("{} has {} dims", name(i), labels_.inputs[i].size()), "shard a dim that is there");
  }

  [[noreturn]] void refuse_invariant(int i, int other) const {
    const bool is_summed = at(other).is_partial() && is_linear_in_both(i, other);
    refuse(fmt::format("{} meets {}: I mixes with nothing but I, since with other data each rank's gradient of it is a "
                       "mere contribution, and I promises the total",
                       name(i), name(other)),
           is_summed ? fmt::format("redistribute operand {} I -> P first (free, added once)", i)
                     : fmt::format("redistribute operand {} I -> R first; its gradient is then summed in backward", i));
  }

  bool is_linear_in_both(int i, int j) const {
    return std::any_of(op_.linear.begin(), op_.linear.end(), [&](const std::vector<int>& group) {
      return std::count(group.begin(), group.end(), i) != 0 && std::count(group.begin(), group.end(), j) != 0;
    });
  }

  [[noreturn]] void refuse_partial_and_shard(int partial, int shard) const {
    const int dim = position(partial, label_of(shard));
    refuse(fmt::format("{} meets {} on one axis", name(partial), name(shard)),
           fmt::format("redistribute operand {} P -> {} first", partial, dim < 0 ? "R" : fmt::format("S({})", dim)));
  }

  Placement through_linear(int partial) const {
    std::vector<int> partials;
    for (int i = 0; i < count(); ++i) {
      if (at(i).is_partial()) partials.push_back(i);
    }
    for (std::vector<int> group : op_.linear) {
      std::sort(group.begin(), group.end());
      if (group == partials) return Partial{};
    }
    for (const std::vector<int>& group : op_.linear) {
      const int whole = first([&](int i) { return !at(i).is_partial() && is_linear_in_both(i, partial); });
      if (whole < 0 || std::find(group.begin(), group.end(), whole) == group.end()) continue;
      refuse(fmt::format("{} is added to {}: it would be added once per rank", name(whole), name(partial)),
             fmt::format("redistribute operand {} {} -> P (free), or operand {} P -> R, first", whole,
                         at(whole).to_string(), partial));
    }
    if (partials.size() > 1) {
      refuse(fmt::format("{} meets {}: the op of the sums is not the sum of the ops", name(partials[0]),
                         name(partials[1])),
             fmt::format("redistribute operand {} P -> R first", partials[1]));
    }
    refuse(fmt::format("{}, but the op is not linear in it", name(partial)),
           fmt::format("redistribute operand {} P -> R (or P -> S) first", partial));
  }

  Placement along_label(int shard) const {
    const char label = label_of(shard);
    int64_t rows = -1;
    for (int i = 0; i < count(); ++i) {
      if (at(i).is_shard()) check_same_shard(shard, i);
      if (at(i).is_shard()) rows = std::max(rows, at(i).owner_rows());
    }
    if (op_.whole.find(label) != op_.whole.npos) {
      refuse(fmt::format("{} shards '{}', of which the op needs all", name(shard), label),
             fmt::format("redistribute operand {} {} -> R, or to a shard of another dim, first", shard,
                         at(shard).to_string()));
    }
    const int whole = first([&](int i) { return !at(i).is_shard() && position(i, label) >= 0; });
    if (whole >= 0) {
      Shard slice{position(whole, label), at(shard).sizes(), at(shard).owner()};
      refuse(fmt::format("'{}' is sharded in {} and whole in {}", label, name(shard), name(whole)),
             fmt::format("redistribute operand {} {} -> {} (a slice, free), or gather operand {}, first", whole,
                         at(whole).to_string(), Placement(std::move(slice)).to_string(), shard));
    }
    const size_t dim = labels_.output.find(label);
    if (dim == std::string_view::npos) return Partial{};
    return Shard{static_cast<int>(dim), at(shard).sizes(), at(shard).owner(), rows};
  }

  void check_same_shard(int a, int b) const {
    if (label_of(a) != label_of(b)) {
      refuse(fmt::format("the axis shards '{}' in {} and '{}' in {}", label_of(a), name(a), label_of(b), name(b)),
             fmt::format("redistribute operand {} {} -> R first", b, at(b).to_string()));
    }
    if (at(a).sizes() == at(b).sizes() && at(a).owner() == at(b).owner()) return;
    Shard same{at(b).dim(), at(a).sizes(), at(a).owner()};
    refuse(fmt::format("'{}' is split differently in {} and {}", label_of(a), name(a), name(b)),
           fmt::format("redistribute operand {} {} -> {} first", b, at(b).to_string(),
                       Placement(std::move(same)).to_string()));
  }

  const OpType& op_;
  const Labels& labels_;
  std::span<const Operand> operands_;
  std::string_view axis_;
};

using Orders = std::map<char, std::vector<std::string>>;

/// The axes that shard each label, major first.
Orders orders_of(const OpType& op, const Labels& labels, std::span<const Layout> operands) {
  Orders orders;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t dim = 0; dim < labels.inputs[i].size(); ++dim) {
      const std::vector<std::string> axes = operands[i].sharding(static_cast<int>(dim));
      if (axes.empty()) continue;
      const char label = labels.inputs[i][dim];
      const auto& known = orders.emplace(label, axes).first->second;
      if (known == axes) continue;
      throw LayoutError({"infer", "op " + std::string(op.labels),
                         fmt::format("'{}' is cut by axes {} in that order in one operand, by {} in operand {}", label,
                                     join(known), join(axes), i),
                         "operand " + std::to_string(i) + " " + operands[i].to_string(),
                         fmt::format("redistribute operand {} so that '{}' is cut by {}", i, label, join(known))});
    }
  }
  return orders;
}

}  // namespace

Placement infer(const OpType& op, std::span<const Operand> operands) {
  const Labels labels = parse(op.labels, operands.size());
  return Rule(op, labels, operands, "").output();
}

Layout infer(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant) {
  const Labels labels = parse(op.labels, operands.size());
  if (!constant.empty() && constant.size() != operands.size()) {
    refuse_labels(op.labels,
                  fmt::format("has {} operands, {} are said to be constant or not", operands.size(), constant.size()));
  }
  std::vector<Layout::Entry> placed;
  for (const Layout& operand : operands) {
    for (const auto& [axis, placement] : operand.entries()) {
      if (std::any_of(placed.begin(), placed.end(), [&name = axis](const auto& entry) { return entry.first == name; }))
        continue;
      std::vector<Operand> on_axis;
      for (size_t i = 0; i < operands.size(); ++i)
        on_axis.push_back({operands[i][axis], !constant.empty() && constant[i]});
      placed.emplace_back(axis, Rule(op, labels, on_axis, axis).output());
    }
  }
  // The axes that shard a dim come first, in the order that the operands agree on.
  const Orders orders = orders_of(op, labels, operands);
  std::vector<Layout::Entry> entries;
  const auto take = [&](const std::string& axis) {
    const auto entry = std::find_if(placed.begin(), placed.end(), [&](const auto& each) { return each.first == axis; });
    entries.push_back(*entry);
    placed.erase(entry);
  };
  for (const char label : labels.output) {
    const auto axes = orders.find(label);
    if (axes == orders.end()) continue;
    for (const std::string& axis : axes->second) take(axis);
  }
  entries.insert(entries.end(), placed.begin(), placed.end());
  return Layout(std::move(entries));
}

}  // namespace caravan
