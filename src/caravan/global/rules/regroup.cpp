#include "caravan/global/rules/regroup.h"

#include <algorithm>

#include "caravan/global/operation.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// The elements that follow each dim's boundary: its own and those of the dims after it.
std::vector<int64_t> suffixes(const Sizes& sizes) {
  std::vector<int64_t> all;
  int64_t elements = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) all.push_back(elements *= sizes[dim]);
  return all;
}

class Regrouping {
 public:
  Regrouping(const Sizes& before, const Sizes& after) : before_(before), after_(after) {}

  Regrouped run() {
    result_.before.resize(before_.size());
    result_.after.resize(after_.size());
    size_t i = before_.size();
    size_t j = after_.size();
    while (i > 0 || j > 0) {  // from the last dims on: a group ends where both products are equal
      size_t begin_i = i;
      size_t begin_j = j;
      int64_t a = 1;
      int64_t b = 1;
      do {
        if (begin_i > 0 && (a <= b || begin_j == 0)) {
          a *= before_[--begin_i];
        } else if (begin_j > 0) {
          b *= after_[--begin_j];
        } else {
          break;
        }
      } while (a != b);
      group(begin_i, i, begin_j, j);
      i = begin_i;
      j = begin_j;
    }
    return result_;
  }

 private:
  void group(size_t begin_i, size_t end_i, size_t begin_j, size_t end_j) {
    const Sizes before(before_.begin() + static_cast<int64_t>(begin_i), before_.begin() + static_cast<int64_t>(end_i));
    const Sizes after(after_.begin() + static_cast<int64_t>(begin_j), after_.begin() + static_cast<int64_t>(end_j));
    std::vector<int64_t> bounds = suffixes(before);
    const std::vector<int64_t> others = suffixes(after);
    bounds.insert(bounds.end(), others.begin(), others.end());
    std::ranges::sort(bounds);
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    bool is_chain = !bounds.empty() && bounds.front() > 0;
    for (size_t k = 1; k < bounds.size(); ++k) is_chain = is_chain && bounds[k] % bounds[k - 1] == 0;
    if (!is_chain) {
      for (size_t dim = begin_i; dim < end_i; ++dim) result_.before[dim] = whole_label(before_[dim]);
      for (size_t dim = begin_j; dim < end_j; ++dim) result_.after[dim] = whole_label(after_[dim]);
      return;
    }
    std::map<int64_t, char> label_below;  // the label that ends at a bound
    int64_t last = 1;
    for (const int64_t bound : bounds) {
      if (bound == last) continue;
      label_below[bound] = labels_.next();
      result_.extents[label_below[bound]] = bound / last;
      last = bound;
    }
    name(before_, begin_i, end_i, result_.before, label_below);
    name(after_, begin_j, end_j, result_.after, label_below);
  }

  static void name(const Sizes& sizes, size_t begin, size_t end, Dims& dims, const std::map<int64_t, char>& labels) {
    int64_t inner = 1;
    for (size_t dim = end; dim-- > begin;) {
      const int64_t outer = inner * sizes[dim];
      for (const auto& [bound, label] : labels) {
        if (bound > inner && bound <= outer) dims[dim].insert(dims[dim].begin(), label);
      }
      inner = outer;
    }
  }

  std::string whole_label(int64_t size) {
    const char label = labels_.next();
    result_.whole += label;
    result_.extents[label] = size;
    return std::string(1, label);
  }

  const Sizes& before_;
  const Sizes& after_;
  Labels labels_;
  Regrouped result_;
};

}  // namespace

Regrouped regroup(const Sizes& before, const Sizes& after) { return Regrouping(before, after).run(); }

}  // namespace caravan
