#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// Some of the layers of a model: none, every n-th (n - 1, 2n - 1, ..), or a list. As text: "", "every 6", "0, 3".
class LayerSet {
 public:
  LayerSet() = default;
  static LayerSet every(int64_t n);
  /// The layers that are true; "every n-th" where these are the same layers.
  static LayerSet of(const std::vector<bool>& is_member);
  /// The inverse of to_string. Throws UsageError for other texts; the caller adds the key.
  static LayerSet parse(std::string_view text);

  bool has(int64_t layer) const noexcept;
  bool empty() const noexcept { return every_ == 0 && listed_.empty(); }
  /// A bool for each layer of a model.
  std::vector<bool> members(int64_t layers) const;
  /// The largest layer of a list, -1 without one.
  int64_t last_listed() const noexcept { return listed_.empty() ? -1 : listed_.back(); }
  std::string to_string() const;
  bool operator==(const LayerSet&) const noexcept = default;

 private:
  int64_t every_ = 0;
  std::vector<int64_t> listed_;  ///< in order
};

}  // namespace caravan
