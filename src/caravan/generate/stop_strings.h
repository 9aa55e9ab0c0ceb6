#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// Ends a text that comes in pieces before the first of some strings. Text that may begin one of them is held back
/// until that is decided, so no part of a stop string is ever shown. The first is the one that is complete first; of
/// those that end at the same place, the longest: how the text is cut into pieces does not matter.
class StopStrings {
 public:
  /// Throws UsageError for a string that is empty or not UTF-8.
  explicit StopStrings(std::vector<std::string> strings);

  /// The text that is decided once `text` follows; after found(), nothing.
  std::string put(std::string_view text);
  /// A stop string was in the text.
  bool found() const noexcept { return found_; }
  /// The text held back, now that no more follows.
  std::string finish();

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace caravan
