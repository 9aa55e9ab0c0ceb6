#include "caravan/session/candidates.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {
namespace {

using Sizes = std::vector<int64_t>;

struct NamedParameter {
  std::string name;
  Sizes sizes;
};

/// Parameters of one module that are cut together: the first by any dim, the others with its dim 0.
using Bundle = std::vector<NamedParameter>;

/// The same weights in equal layers.
struct EqualBundles {
  std::string pattern{};  ///< of their modules
  std::vector<Bundle> all{};
};

/// Numbers in the name of a module become stars: equal layers differ in them alone.
std::string without_numbers(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) {
      pattern += c;
    } else if (pattern.empty() || pattern.back() != '*') {
      pattern += '*';
    }
  }
  return pattern;
}

/// A pattern for these parameters: a star for numbers, if it matches no others.
std::vector<std::string> patterns_of(const std::vector<std::string>& names, const std::string& pattern,
                                     const std::vector<std::string>& all) {
  const auto matching = std::ranges::count_if(all, [&](const auto& name) { return matches_pattern(pattern, name); });
  const bool fits = matching == static_cast<int64_t>(names.size()) &&
                    std::ranges::all_of(names, [&](const auto& name) { return matches_pattern(pattern, name); });
  return fits ? std::vector<std::string>{pattern} : names;
}

class CandidateFinder {
 public:
  CandidateFinder(const torch::nn::Module& net, const Mesh& mesh, const CandidateOptions& options)
      : net_(net), mesh_(mesh), axis_(options.axis), num_ranks_(mesh[options.axis].size()) {
    names_ = standard_names(net);
    names_.insert(names_.end(), options.names.begin(), options.names.end());
    extents_ = options.extents;
    for (const auto& [name, extent] : standard_extents(net)) extents_.emplace(name, extent);
    for (const auto& item : net.named_parameters()) all_.push_back(item.key());
  }

  std::vector<LayoutCandidates> find() {
    add_named();
    std::vector<const c10::TensorImpl*> seen;  // one that is registered twice is laid out once
    for (const auto& module : net_.named_modules("", true)) {
      Bundle own;
      for (const auto& item : module.value()->named_parameters(/*recurse=*/false)) {
        const auto* impl = item.value().unsafeGetTensorImpl();
        if (std::ranges::find(seen, impl) != seen.end()) continue;
        seen.push_back(impl);
        const std::string name = module.key().empty() ? item.key() : module.key() + "." + item.key();
        if (item.value().dim() > 0 && !has_names(name)) own.push_back({name, item.value().sizes().vec()});
      }
      add_bundles(module.key(), bundles_of(own), !module.value()->children().empty());
    }
    for (const std::string& key : order_) add_layer(equal_.at(key));
    return std::move(found_);
  }

 private:
  bool has_names(const std::string& parameter) const {
    return std::ranges::any_of(names_, [&](const DimNames& one) { return matches_pattern(one.pattern, parameter); });
  }

  /// A choice for each name of a dim.
  void add_named() {
    if (names_.empty()) return;
    named_layouts(net_, names_, {}, mesh_, extents_);  // throws what is wrong with the names
    std::set<std::string> names;
    for (const DimNames& one : names_) {
      std::string word;
      for (const char c : one.dims + " ") {
        const bool ends = c == ' ' || c == '\t' || c == '(' || c == ')';
        if (!ends) word += c;
        if (ends && !word.empty() && word != "_") names.insert(word);
        if (ends) word.clear();
      }
    }
    for (const std::string& name : names) {
      const auto layouts = layouts_of_name(name);
      if (!layouts || layouts->empty()) continue;
      LayoutCandidates& one = found_.emplace_back(LayoutCandidates{name, {}, {{"whole", {}}, {"cut", {}}}});
      std::map<std::string, std::vector<NamedLayout>> alike;  // by pattern and layout
      for (const NamedLayout& each : *layouts) {
        one.parameters.push_back(each.pattern);
        alike[without_numbers(each.pattern) + " " + each.layout.to_string()].push_back(each);
      }
      for (const auto& [key, group] : alike) add_layouts(one.choices.back(), names_in(group), group.front().layout);
    }
  }

  std::optional<std::vector<NamedLayout>> layouts_of_name(const std::string& name) const {
    try {
      const DimRules rules(std::vector<std::string>{name + " -> " + axis_});
      auto layouts = named_layouts(net_, names_, rules, mesh_, extents_);
      std::erase_if(layouts,
                    [&](const NamedLayout& each) { return !each.layout.has(axis_) || !each.layout[axis_].is_shard(); });
      return layouts;
    } catch (const LayoutError&) {  // fewer elements than ranks
      return std::nullopt;
    }
  }

  static std::vector<std::string> names_in(const std::vector<NamedLayout>& layouts) {
    std::vector<std::string> names;
    for (const NamedLayout& each : layouts) names.push_back(each.pattern);
    return names;
  }

  void add_layouts(LayoutCandidates::Choice& choice, const std::vector<std::string>& names,
                   const Layout& layout) const {
    const auto patterns = names.size() == 1 ? names : patterns_of(names, without_numbers(names.front()), all_);
    for (const std::string& pattern : patterns) {
      choice.layouts.push_back({pattern, layout});
    }
  }

  /// A vector goes with the last weight before it that has as many rows.
  static std::vector<Bundle> bundles_of(const Bundle& own) {
    std::vector<Bundle> bundles;
    for (const NamedParameter& one : own) {
      const auto fits = [&](const Bundle& bundle) { return bundle.front().sizes[0] == one.sizes[0]; };
      const auto place = one.sizes.size() > 1 ? bundles.rend() : std::find_if(bundles.rbegin(), bundles.rend(), fits);
      if (place == bundles.rend()) {
        bundles.push_back({one});
      } else {
        place->push_back(one);
      }
    }
    return bundles;
  }

  /// Children of a list that are weights themselves, as in Linear, ReLU, Linear, are no equal layers.
  void add_bundles(const std::string& module, std::vector<Bundle> bundles, bool has_children) {
    const bool is_weight = bundles.size() == 1 && !has_children;
    const size_t dot = module.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : module.substr(0, dot + 1);
    const std::string pattern =
        is_weight ? without_numbers(parent) + module.substr(parent.size()) : without_numbers(module);
    for (Bundle& bundle : bundles) {
      std::string key = pattern;
      for (const NamedParameter& one : bundle) {
        key += " " + own_name(one);
        for (const int64_t size : one.sizes) key += fmt::format(" {}", size);
      }
      if (!equal_.contains(key)) order_.push_back(key);
      EqualBundles& equal = equal_[key];
      equal.pattern = pattern.empty() ? "" : pattern + ".";
      equal.all.push_back(std::move(bundle));
    }
  }

  static std::string own_name(const NamedParameter& parameter) {
    return parameter.name.substr(parameter.name.rfind('.') + 1);
  }

  void add_layer(const EqualBundles& equal) {
    const Bundle& first = equal.all.front();
    const Sizes& sizes = first.front().sizes;
    LayoutCandidates one{.what = patterns(equal, 0).front(), .choices = {{"whole", {}}}};
    for (const Bundle& bundle : equal.all) {
      for (const NamedParameter& each : bundle) one.parameters.push_back(each.name);
    }
    for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
      const bool may_be_three = dim == 0 && sizes.size() == 2 && sizes[0] == 3 * sizes[1];
      for (const int blocks : {1, 3}) {
        if ((blocks > 1 && !may_be_three) || sizes[dim] / blocks < num_ranks_) continue;
        LayoutCandidates::Choice& choice = one.choices.emplace_back();
        choice.text = fmt::format("dim {}{}", dim, blocks > 1 ? " in 3 blocks" : "");
        choice.size = sizes[dim] / blocks;
        for (size_t i = 0; i < (dim == 0 ? first.size() : 1); ++i) {
          const Layout layout{{axis_, Shard{.dim = dim, .blocks = blocks}}};
          for (const std::string& pattern : patterns(equal, i)) choice.layouts.push_back({pattern, layout});
        }
      }
    }
    if (one.choices.size() > 1) found_.push_back(std::move(one));
  }

  /// Of parameter `i` of each of the equal bundles.
  std::vector<std::string> patterns(const EqualBundles& equal, size_t i) const {
    std::vector<std::string> names;
    for (const Bundle& bundle : equal.all) names.push_back(bundle[i].name);
    return names.size() == 1 ? names : patterns_of(names, equal.pattern + own_name(equal.all.front()[i]), all_);
  }

  const torch::nn::Module& net_;
  const Mesh& mesh_;
  std::string axis_;
  int num_ranks_;
  std::vector<DimNames> names_;
  DimExtents extents_;
  std::vector<std::string> all_;  ///< names of all parameters
  std::map<std::string, EqualBundles> equal_;
  std::vector<std::string> order_;  ///< of the keys
  std::vector<LayoutCandidates> found_;
};

}  // namespace

std::vector<LayoutCandidates> candidates(const Trainable& net, const Mesh& mesh, const CandidateOptions& options) {
  const char* action = "its layers have tables of splits: Setting(\"tensor_parallel\", \"1d\")";
  return CandidateFinder(TrainableParts::module_of(net, "candidates", action), mesh, options).find();
}

std::vector<LayoutCandidates> candidates(const Trainable& net, const Session& session,
                                         const CandidateOptions& options) {
  return candidates(net, session.mesh(), options);
}

}  // namespace caravan
