#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace caravan {

/// The layouts of a search by their texts, each estimated once; and the way from one of them to its best neighbours.
/// `Layout` has a `text`.
template <class Layout>
class EstimatedLayouts {
 public:
  /// `is_over` is asked before each estimate.
  explicit EstimatedLayouts(std::function<bool()> is_over) : is_over_(std::move(is_over)) {}

  /// The layout of this text, which `make` estimates (an optional Layout) if it is new. Null: it is not possible, or
  /// time is up.
  template <class Make>
  const Layout* find_or_make(const std::string& text, const Make& make) {
    const auto known = known_.find(text);
    if (known != known_.end()) return known->second ? &*known->second : nullptr;
    if (is_over_()) {
      is_complete_ = false;
      return nullptr;
    }
    std::optional<Layout>& layout = known_.emplace(text, make()).first->second;
    return layout ? &*layout : nullptr;
  }
  void add(const Layout& layout) { known_[layout.text] = layout; }

  /// To better neighbours, until there is none: `best_neighbour` returns a layout itself if no neighbour is better.
  template <class BestNeighbour>
  void climb(const Layout* from, const BestNeighbour& best_neighbour) {
    while (from != nullptr && climbed_.insert(from->text).second) {
      const Layout* best = best_neighbour(*from);
      from = best == from ? nullptr : best;
    }
  }

  /// Those that are possible, by text.
  std::vector<Layout> all() const {
    std::vector<Layout> all;
    for (const auto& [text, layout] : known_) {
      if (layout) all.push_back(*layout);
    }
    return all;
  }
  size_t size() const noexcept { return known_.size(); }
  /// Whether time was never up.
  bool is_complete() const noexcept { return is_complete_; }

 private:
  std::function<bool()> is_over_;
  bool is_complete_ = true;
  std::map<std::string, std::optional<Layout>> known_;
  std::set<std::string> climbed_;
};

}  // namespace caravan
