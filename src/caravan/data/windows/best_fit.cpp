#include "caravan/data/windows/best_fit.h"

#include <limits>
#include <set>

namespace caravan {
namespace {

constexpr uint32_t kNoBin = std::numeric_limits<uint32_t>::max();

/// Indices of the items, from the largest to the smallest.
std::vector<uint32_t> in_decreasing_order(std::span<const uint32_t> sizes, uint32_t room) {
  std::vector<uint32_t> begins(size_t{room} + 1);  // of the items of a size: as many as are larger
  for (const uint32_t size : sizes) ++begins[size - 1];
  for (size_t size = room; size-- > 0;) begins[size] += begins[size + 1];
  std::vector<uint32_t> order(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) order[begins[sizes[i]]++] = static_cast<uint32_t>(i);
  return order;
}

/// Bins by the room that is left in them: a stack for each.
class OpenBins {
 public:
  explicit OpenBins(uint32_t room) : last_(size_t{room} + 1, kNoBin) {}

  /// Puts an item of this size into a bin, a new one if none has room.
  uint32_t put(uint32_t size) {
    const auto found = rooms_.lower_bound(size);
    uint32_t bin = static_cast<uint32_t>(below_.size());
    uint32_t left = static_cast<uint32_t>(last_.size() - 1);
    if (found == rooms_.end()) {
      below_.push_back(kNoBin);
    } else {
      left = *found;
      bin = last_[left];
      last_[left] = below_[bin];
      if (last_[left] == kNoBin) rooms_.erase(found);
    }
    left -= size;
    if (left == 0) return bin;
    if (last_[left] == kNoBin) rooms_.insert(left);
    below_[bin] = last_[left];
    last_[left] = bin;
    return bin;
  }
  size_t size() const { return below_.size(); }

 private:
  std::vector<uint32_t> last_;   ///< the bin with so much room that was used last
  std::vector<uint32_t> below_;  ///< of each bin, the one under it in its stack
  std::set<uint32_t> rooms_;     ///< for which there is a bin
};

}  // namespace

Bins best_fit_decreasing(std::span<const uint32_t> sizes, uint32_t room) {
  Bins bins{.of_item = std::vector<uint32_t>(sizes.size())};
  OpenBins open(room);
  for (const uint32_t item : in_decreasing_order(sizes, room)) bins.of_item[item] = open.put(sizes[item]);
  std::vector<uint32_t> numbers(open.size(), kNoBin);
  for (uint32_t& bin : bins.of_item) {
    if (numbers[bin] == kNoBin) numbers[bin] = bins.count++;
    bin = numbers[bin];
  }
  return bins;
}

}  // namespace caravan
