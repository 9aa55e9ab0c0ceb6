#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// Ends a text that comes in pieces before the first of some strings. Text that may begin one of them is held back
/// until that is decided, so no part of a stop string is ever shown. The first is the one that is complete first; among
/// those that end at the same place, the longest. The result does not depend on the pieces.
class StopStrings {
 public:
  /// Throws UsageError for a string that is empty or not UTF-8.
  explicit StopStrings(std::vector<std::string> strings);

  /// The text that can be shown after `text` is added; after found(), nothing.
  std::string put(std::string_view text);
  /// Whether the text contained a stop string.
  bool found() const noexcept { return found_; }
  /// The text held back, at the end of the text.
  std::string finish();

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace caravan
