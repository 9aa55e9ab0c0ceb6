#pragma once

#include <algorithm>
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

/// Of estimated layouts, the best first, those that are predicted whole: at most `most` that fit, or `least` if none
/// does, since what does not fit is of use only then. `predict` returns an optional Prediction, which replaces the
/// estimate so that sentences say what rows say; `is_over` is asked with what is found before each; `sort` sorts.
template <class Layout, class Predict, class IsOver, class Sort>
std::vector<Layout> predict_best(std::vector<Layout>& estimated, size_t most, size_t least, const Predict& predict,
                                 const IsOver& is_over, const Sort& sort) {
  std::vector<Layout> best;
  size_t num_fitting = 0;
  for (Layout& one : estimated) {
    if (num_fitting == most || is_over(best)) break;
    if (!one.prediction.fits() && (num_fitting > 0 || best.size() >= least)) break;
    const auto whole = predict(one);
    if (!whole) continue;
    one.prediction = *whole;
    const bool is_new = std::ranges::none_of(best, [&](const Layout& other) {
      return other.prediction.seconds == whole->seconds && other.prediction.memory.total() == whole->memory.total();
    });
    if (!is_new) continue;
    best.push_back(one);
    num_fitting += whole->fits() ? 1 : 0;
  }
  sort(best);
  sort(estimated);
  if (num_fitting > 0) {
    std::erase_if(best, [](const Layout& one) { return !one.prediction.fits(); });
  } else if (best.size() > least) {
    best.erase(best.begin() + static_cast<std::ptrdiff_t>(least), best.end());
  }
  return best;
}

}  // namespace caravan
