#include "caravan/global/names.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/labels.h"

namespace caravan {
namespace {

using Names = std::vector<std::string>;  // of one dim, the slowest first

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \t", at);
    if (begin == text.npos) break;
    at = std::min(text.find_first_of(" \t", begin), text.size());
    words.emplace_back(text.substr(begin, at - begin));
  }
  return words;
}

[[noreturn]] void refuse_names(std::string_view dims, const std::string& fact) {
  throw UsageError({"names", fmt::format("\"{}\"", dims), fact, "",
                    "write one name a dim, and several of one dim in parentheses: \"(three heads width) embed\""});
}

std::vector<Names> dims_from(std::string_view text) {
  std::string spaced;
  for (const char c : text) spaced += c == '(' || c == ')' ? std::string(" ") + c + " " : std::string(1, c);
  std::vector<Names> dims;
  bool is_open = false;
  for (const std::string& word : words_of(spaced)) {
    if (word == "(" || word == ")") {
      if (is_open == (word == "(")) refuse_names(text, "has parentheses that do not match");
      is_open = word == "(";
      if (is_open) dims.emplace_back();
    } else if (is_open) {
      dims.back().push_back(word);
    } else {
      dims.push_back({word});
    }
  }
  if (is_open) refuse_names(text, "has parentheses that do not match");
  for (const Names& dim : dims) {
    if (dim.empty()) refuse_names(text, "has parentheses with nothing inside");
  }
  return dims;
}

/// A tensor with names of its dims.
struct NamedSizes {
  std::string what;
  std::vector<Names> dims;
  std::vector<int64_t> sizes;

  std::string subject() const { return fmt::format("{} {}", what, shape_text(sizes.data(), sizes.size())); }
};

NamedSizes named_sizes(std::string_view text, const std::vector<int64_t>& sizes, std::string_view what) {
  NamedSizes named{std::string(what.empty() ? "tensor" : what), dims_from(text), sizes};
  if (named.dims.size() != sizes.size()) {
    throw ShapeError({"names", named.subject(),
                      fmt::format("has {} dims, \"{}\" names {}", sizes.size(), text, named.dims.size()), "",
                      "name each dim once"});
  }
  return named;
}

/// Adds what follows from one dim: at most one of its names may be unknown.
void add_extents(const NamedSizes& named, size_t dim, DimExtents& extents) {
  int64_t known = 1;
  const std::string* unknown = nullptr;
  for (const std::string& name : named.dims[dim]) {
    const auto found = extents.find(name);
    if (found != extents.end() && name != "_") {
      known *= found->second;
    } else if (unknown != nullptr) {
      throw UsageError({"names", named.subject(),
                        fmt::format("the numbers of \"{}\" and \"{}\" do not follow from the {} elements of dim {}",
                                    *unknown, name, named.sizes[dim], dim),
                        "", fmt::format("give all but one of them: {{{{\"{}\", ..}}}}", *unknown)});
    } else {
      unknown = &name;
    }
  }
  const int64_t size = named.sizes[dim];
  if (known == 0 || size % known != 0 || (unknown == nullptr && size != known)) {
    throw ShapeError({"names", named.subject(),
                      fmt::format("dim {} has {} elements, its names ({}) multiply to {}{}", dim, size,
                                  join(std::span<const std::string>(named.dims[dim]), " "),
                                  unknown == nullptr ? "" : "a multiple of ", known),
                      "", "give names and numbers that fit the tensor"});
  }
  if (unknown != nullptr && *unknown != "_") extents[*unknown] = size / known;
}

/// The two names, of different dims, that one axis would cut; nothing if no axis does.
struct Conflict {
  std::string axis, first, second;
};

std::optional<Conflict> conflict_of(const NamedSizes& named, const DimRules& rules) {
  std::map<std::string, std::string> cut_by;
  for (const Names& dim : named.dims) {
    for (const std::string& name : dim) {
      for (const std::string& axis : rules.axes(name)) {
        const auto [other, is_new] = cut_by.emplace(axis, name);
        if (!is_new) return Conflict{axis, other->second, name};
      }
    }
  }
  return std::nullopt;
}

/// The largest set of rules without a conflict; of equal ones the first.
DimRules nearest_rules(const std::vector<NamedSizes>& tensors, const DimRules& rules) {
  std::vector<std::string> names;
  for (const auto& [name, axes] : rules.all()) names.push_back(name);
  DimRules best;
  size_t most = 0;
  for (uint64_t dropped = 0; names.size() <= 16 && dropped < (uint64_t{1} << names.size()); ++dropped) {
    DimRules rest = rules;
    for (size_t i = 0; i < names.size(); ++i) {
      if ((dropped >> i & 1) != 0) rest = rest.without(names[i]);
    }
    const bool is_legal =
        std::ranges::none_of(tensors, [&](const NamedSizes& each) { return conflict_of(each, rest).has_value(); });
    if (!is_legal || rest.all().size() <= most) continue;
    most = rest.all().size();
    best = rest;
  }
  return best;
}

[[noreturn]] void refuse_conflict(const NamedSizes& named, const Conflict& conflict, const DimRules& nearest) {
  throw LayoutError({"names", named.subject(),
                     fmt::format("axis {} would cut both \"{}\" and \"{}\", but one axis cuts one dim of a tensor",
                                 conflict.axis, conflict.first, conflict.second),
                     "", "the nearest rules without a conflict are " + nearest.to_string()});
}

void check_axes(const DimRules& rules, const Mesh& mesh) {
  for (const auto& [name, axes] : rules.all()) {
    for (const std::string& axis : axes) {
      if (!is_absent_axis(mesh, axis)) mesh[axis];  // throws, naming those that there are
    }
  }
}

/// The cuts of all named dims, each label standing for a name.
Layout layout_from(const NamedSizes& named, const DimRules& rules, const Mesh& mesh, const DimExtents& extents) {
  Dims dims;
  std::map<char, int64_t> elements;
  std::vector<AxisCut> cuts;
  char label = 'a';
  for (const Names& names : named.dims) {
    dims.emplace_back();
    for (const std::string& name : names) {
      dims.back() += label;
      elements[label] = name == "_" ? named.sizes[dims.size() - 1] : extents.at(name);
      int64_t rows = elements[label];
      int64_t least = rows;  // of any rank: all must throw alike
      for (const std::string& axis : rules.axes(name)) {
        if (is_absent_axis(mesh, axis)) continue;
        const int n = mesh[axis].size();
        if (least < n) {
          throw LayoutError({"names", named.subject(),
                             fmt::format("\"{}\" has {} elements for the {} ranks of axis {}", name, rows, n, axis),
                             mesh.where(),
                             fmt::format("use at most {} ranks, or drop the rule of \"{}\"", rows, name)});
        }
        least /= n;
        Cut cut{Cut::Kind::label, label};
        if (rows % n != 0) cut.sizes = parts_of(rows, n);
        rows = cut.sizes.empty() ? rows / n : cut.sizes[mesh[axis].coord()];
        cuts.push_back({axis, std::move(cut)});
      }
      ++label;
    }
  }
  auto layout = layout_of(cuts, dims, elements, places_of(mesh));
  if (layout) return *layout;
  throw LayoutError({"names", named.subject(), "two names of one dim are both cut unevenly", mesh.where(),
                     "cut one of them, or sizes that the axes divide"});
}

}  // namespace

DimRules::DimRules(std::initializer_list<std::string_view> rules) {
  for (const std::string_view rule : rules) add(rule);
}

DimRules::DimRules(const std::vector<std::string>& rules) {
  for (const std::string& rule : rules) add(rule);
}

void DimRules::add(std::string_view rule) {
  const size_t arrow = rule.find("->");
  const auto names = words_of(rule.substr(0, arrow == rule.npos ? 0 : arrow));
  auto axes = arrow == rule.npos ? std::vector<std::string>{} : words_of(rule.substr(arrow + 2));
  if (names.size() != 1 || axes.empty()) {
    throw UsageError({"names", fmt::format("rule \"{}\"", rule), "is not of the form \"name -> axis\"", "",
                      "write \"ff -> tp\", or \"vocab -> tp dp\" for two axes"});
  }
  if (rules_.emplace(names[0], std::move(axes)).second) return;
  throw UsageError({"names", fmt::format("rule \"{}\"", rule), fmt::format("\"{}\" has a rule already", names[0]), "",
                    "name all its axes in one rule"});
}

const std::vector<std::string>& DimRules::axes(const std::string& name) const {
  static const std::vector<std::string> none;
  const auto found = rules_.find(name);
  return found == rules_.end() ? none : found->second;
}

DimRules DimRules::without(const std::string& name) const {
  DimRules rest = *this;
  rest.rules_.erase(name);
  return rest;
}

std::string DimRules::to_string() const {
  std::vector<std::string> all;
  for (const auto& [name, axes] : rules_)
    all.push_back(fmt::format("\"{} -> {}\"", name, join(std::span<const std::string>(axes), " ")));
  return "{" + join(std::span<const std::string>(all), ", ") + "}";
}

Layout named_layout(std::string_view dims, const std::vector<int64_t>& sizes, const DimRules& rules, const Mesh& mesh,
                    const DimExtents& extents, std::string_view what) {
  check_axes(rules, mesh);
  const NamedSizes named = named_sizes(dims, sizes, what);
  DimExtents known = extents;
  for (size_t dim = 0; dim < named.dims.size(); ++dim) add_extents(named, dim, known);
  if (const auto conflict = conflict_of(named, rules)) refuse_conflict(named, *conflict, nearest_rules({named}, rules));
  return layout_from(named, rules, mesh, known);
}

namespace {

/// A program's rules may speak of its data too, but not only, and not of a name that is nearly one of a parameter's.
void check_rules_are_used(const DimRules& rules, const std::set<std::string>& used) {
  if (rules.all().empty()) return;
  std::vector<std::string> free;  // names without a rule
  bool any = false;
  for (const std::string& name : used) {
    if (name != "_" && rules.axes(name).empty()) free.push_back(name);
    any = any || !rules.axes(name).empty();
  }
  for (const auto& [name, axes] : rules.all()) {
    if (used.contains(name)) continue;
    const std::string near = nearest(name, free);
    const bool is_near =
        !near.empty() && name.size() > 3 && edit_distance(name, near) <= std::max<size_t>(1, name.size() / 4);
    if (any && !is_near) continue;
    throw UsageError({"names", fmt::format("rule \"{} -> {}\"", name, join(std::span<const std::string>(axes), " ")),
                      "no parameter and no buffer has a dim of this name", "",
                      near.empty() ? "use a name of the dims that are given" : "did you mean \"" + near + "\"?"});
  }
}

}  // namespace

std::vector<NamedLayout> named_layouts(const torch::nn::Module& net, const std::vector<DimNames>& names,
                                       const DimRules& rules, const Mesh& mesh, const DimExtents& extents) {
  check_axes(rules, mesh);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& each : net.named_parameters()) tensors.emplace_back(each.key(), each.value());
  for (const auto& each : net.named_buffers()) tensors.emplace_back(each.key(), each.value());
  std::vector<std::string> tensor_names;
  for (const auto& [name, tensor] : tensors) tensor_names.push_back(name);
  std::set<std::string> used;
  for (const DimNames& given : names) {
    for (const Names& dim : dims_from(given.dims)) used.insert(dim.begin(), dim.end());
    if (std::ranges::any_of(tensor_names, [&](const auto& name) { return matches_pattern(given.pattern, name); }))
      continue;
    throw UsageError({"names", "pattern \"" + given.pattern + "\"", "matches no parameter and no buffer", "",
                      "did you mean \"" + nearest_pattern(given.pattern, tensor_names) + "\"?"});
  }
  check_rules_are_used(rules, used);
  std::vector<NamedSizes> all;
  for (const auto& [name, tensor] : tensors) {
    const auto given = std::find_if(names.rbegin(), names.rend(), [&name = name](const DimNames& each) {
      return matches_pattern(each.pattern, name);
    });
    if (given != names.rend() && tensor.defined()) all.push_back(named_sizes(given->dims, tensor.sizes().vec(), name));
  }
  DimExtents known = extents;
  for (const bool is_single : {true, false}) {  // what single names say helps those in parentheses
    for (const NamedSizes& named : all) {
      for (size_t dim = 0; dim < named.dims.size(); ++dim) {
        if ((named.dims[dim].size() == 1) == is_single) add_extents(named, dim, known);
      }
    }
  }
  for (const NamedSizes& named : all) {
    if (const auto conflict = conflict_of(named, rules)) refuse_conflict(named, *conflict, nearest_rules(all, rules));
  }
  std::vector<NamedLayout> layouts;
  for (const NamedSizes& named : all) layouts.push_back({named.what, layout_from(named, rules, mesh, known)});
  return layouts;
}

std::vector<DimNames> standard_names(const torch::nn::Module& net) {
  std::vector<DimNames> names;
  const auto add = [&](const std::string& prefix, const std::string& name, const at::Tensor& tensor,
                       const std::string& dims) {
    if (tensor.defined() && tensor.numel() > 0) names.push_back({prefix.empty() ? name : prefix + "." + name, dims});
  };
  for (const auto& each : net.named_modules("", true)) {
    const std::string& at = each.key();
    if (const auto* attention = each.value()->as<torch::nn::MultiheadAttention>()) {
      add(at, "in_proj_weight", attention->in_proj_weight, "(three heads width) embed");
      add(at, "in_proj_bias", attention->in_proj_bias, "(three heads width)");
      add(at, "q_proj_weight", attention->q_proj_weight, "(heads width) embed");
      add(at, "k_proj_weight", attention->k_proj_weight, "(heads width) _");
      add(at, "v_proj_weight", attention->v_proj_weight, "(heads width) _");
      add(at, "out_proj.weight", attention->out_proj->weight, "embed (heads width)");
      add(at, "out_proj.bias", attention->out_proj->bias, "embed");
    }
    const auto add_mlp = [&](const torch::nn::Linear& up, const torch::nn::Linear& down) {
      add(at, "linear1.weight", up->weight, "ff embed");
      add(at, "linear1.bias", up->bias, "ff");
      add(at, "linear2.weight", down->weight, "embed ff");
      add(at, "linear2.bias", down->bias, "embed");
    };
    if (const auto* layer = each.value()->as<torch::nn::TransformerEncoderLayer>())
      add_mlp(layer->linear1, layer->linear2);
    if (const auto* layer = each.value()->as<torch::nn::TransformerDecoderLayer>())
      add_mlp(layer->linear1, layer->linear2);
  }
  return names;
}

DimExtents standard_extents(const torch::nn::Module& net) {
  DimExtents extents{{"three", 3}};
  for (const auto& each : net.modules(true)) {
    if (const auto* attention = each->as<torch::nn::MultiheadAttention>()) {
      extents["heads"] = attention->options.num_heads();
      extents["width"] = attention->head_dim;
    }
  }
  return extents;
}

DimRules transformer_rules(const std::string& tp, const std::string& dp) {
  return DimRules(std::vector<std::string>{"heads -> " + tp, "ff -> " + tp, "vocab -> " + tp, "batch -> " + dp});
}

}  // namespace caravan
