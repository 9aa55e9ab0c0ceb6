#include "caravan/session/plan_tensor.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "caravan/base/divisors.h"
#include "caravan/base/pattern.h"
#include "caravan/comm/record.h"
#include "caravan/plan/if_possible.h"

namespace caravan {
namespace {

/// A number of a choice for each of the candidates; 0: whole.
using Choices = std::vector<size_t>;
using AllCandidates = std::vector<LayoutCandidates>;

AllCandidates candidates_on(const Trainable& net, int size, const CandidateOptions& options) {
  return candidates(net, Mesh::create(make_record_world(0, size), {{options.axis, size}}), options);
}

TensorChoice tensor_of(const AllCandidates& all, const Choices& chosen, const std::string& axis) {
  TensorChoice choice;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& layouts = all[i].choices[chosen[i]].layouts;
    choice.layouts.insert(choice.layouts.end(), layouts.begin(), layouts.end());
  }
  if (choice.layouts.empty()) choice.layouts.push_back({"*", {{axis, Replicate{}}}});
  return choice;
}

/// Whether no parameter is cut by two of them.
bool is_legal(const AllCandidates& all, const Choices& chosen) {
  std::set<std::string> cut;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const NamedLayout& layout : all[i].choices[chosen[i]].layouts) {
      for (const std::string& parameter : all[i].parameters) {
        if (matches_pattern(layout.pattern, parameter) && !cut.insert(parameter).second) return false;
      }
    }
  }
  return true;
}

class TensorSearch {
 public:
  TensorSearch(const PlannedStep& step, LayoutLimits limits, int size, const KeptTensors& kept, AllCandidates all,
               const std::function<bool()>& is_over)
      : step_(step), limits_(std::move(limits)), size_(size), kept_(kept), all_(std::move(all)), is_over_(is_over) {}

  /// Nothing if copies are as fast.
  std::optional<Choices> find() {
    const Choices whole(all_.size(), 0);
    best_ = whole;
    const auto copies = seconds_of(whole);
    if (!copies) return std::nullopt;
    least_ = *copies;
    do {
      while (improve_one()) {
      }
    } while (improve_two());
    return best_ == whole ? std::nullopt : std::optional(best_);
  }
  bool is_complete() const noexcept { return is_complete_; }

 private:
  /// Whether it is the new best.
  bool is_better(const Choices& chosen) {
    constexpr double kLessBy = 1 - 1e-6;  // less is the same in other sums
    if (!is_legal(all_, chosen)) return false;
    const auto seconds = seconds_of(chosen);
    if (!seconds || *seconds >= least_ * kLessBy) return false;
    least_ = *seconds;
    best_ = chosen;
    return true;
  }

  /// The best choice of each, one after another.
  bool improve_one() {
    const Choices before = best_;
    for (size_t i = 0; i < all_.size(); ++i) {
      Choices other = best_;
      for (other[i] = 0; other[i] < all_[i].choices.size(); ++other[i]) {
        if (other != best_) is_better(other);
      }
    }
    return best_ != before;
  }

  /// A layer alone may cost more than a pair: what it makes in parts, the next one puts together.
  bool improve_two() {
    for (size_t i = 0; i < all_.size(); ++i) {
      for (size_t k = i + 1; k < all_.size(); ++k) {
        Choices other = best_;
        for (other[i] = 1; other[i] < all_[i].choices.size(); ++other[i]) {
          for (other[k] = 1; other[k] < all_[k].choices.size(); ++other[k]) {
            const int64_t size = all_[i].choices[other[i]].size;
            if (size == 0 || size != all_[k].choices[other[k]].size) continue;
            if (other[i] != best_[i] && other[k] != best_[k] && is_better(other)) return true;
          }
        }
      }
    }
    return false;
  }

  /// Of a step of one micro-batch on copies of the split net. Nothing if it cannot be rehearsed, or time is up.
  std::optional<double> seconds_of(const Choices& chosen) {
    const auto known = known_.find(chosen);
    if (known != known_.end()) return known->second;
    if (!is_complete_) return std::nullopt;
    if (is_over_()) {
      is_complete_ = false;
      return std::nullopt;
    }
    LayoutLimits limits = limits_;
    limits.tensors = {{size_, tensor_of(all_, chosen, "tp")}};
    const LayoutSpace space(limits);
    const LayoutPredictor predictor(step_, space, kept_);
    const StepLayout layout = space.seeds(space.stages(size_).front(), size_).front();
    const auto prediction = if_possible([&] { return predictor.estimate(layout); });
    auto& seconds = known_[chosen];
    if (prediction) seconds = prediction->seconds;
    return seconds;
  }

  const PlannedStep& step_;
  LayoutLimits limits_;
  int size_;
  const KeptTensors& kept_;
  AllCandidates all_;
  const std::function<bool()>& is_over_;
  std::map<Choices, std::optional<double>> known_;
  Choices best_;
  double least_ = 0;
  bool is_complete_ = true;
};

/// The same choices on an axis of another size, where they are legal.
Choices chosen_as(const AllCandidates& all, const AllCandidates& from, const Choices& chosen) {
  Choices same(all.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    const auto found = std::ranges::find(all, from[i].what, &LayoutCandidates::what);
    if (found == all.end()) continue;
    const auto& choices = found->choices;
    const auto choice = std::ranges::find(choices, from[i].choices[chosen[i]].text, &LayoutCandidates::Choice::text);
    if (choice != choices.end()) same[found - all.begin()] = choice - choices.begin();
  }
  return same;
}

}  // namespace

FoundTensors find_tensors(const PlannedStep& step, LayoutLimits limits, const CandidateOptions& options,
                          const KeptTensors& kept, const std::function<bool()>& is_over) {
  FoundTensors found;
  std::optional<Choices> chosen;
  AllCandidates first;
  for (const int64_t divisor : divisors(limits.ranks, 2, limits.ranks)) {
    const int size = static_cast<int>(divisor);
    if (LayoutSpace(limits).stages(size).empty()) continue;
    kept.restore();
    AllCandidates all = candidates_on(step.net, size, options);
    if (!chosen) {
      TensorSearch search(step, limits, size, kept, all, is_over);
      chosen = search.find();
      found.is_complete = search.is_complete();
      if (!chosen) return found;
      first = all;
    }
    const Choices same = chosen_as(all, first, *chosen);
    if (same != Choices(all.size(), 0)) found.by_size[size] = tensor_of(all, same, options.axis);
  }
  return found;
}

}  // namespace caravan
