#include "caravan/generate/stop_strings.h"

#include <algorithm>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// The number of bytes at the end of `text` that begin `string`, but not all of it.
size_t length_of_begin(std::string_view text, std::string_view string) {
  size_t length = std::min(text.size(), string.size() - 1);
  while (!text.ends_with(string.substr(0, length))) --length;
  return length;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    if (!string.empty() && is_utf8(string)) continue;
    throw UsageError({"generate", "stop string", string.empty() ? "is empty" : "is not UTF-8", "",
                      "give the text to stop before, such as --stop 'Question:', or leave it out"});
  }
}

std::string StopStrings::put(std::string_view text) {
  if (found_) return "";
  held_ += text;
  std::pair<size_t, size_t> first{std::string::npos, 0};  // end, begin
  size_t undecided = 0;
  for (const std::string& string : strings_) {
    const size_t begin = held_.find(string);
    if (begin != std::string::npos) first = std::min(first, {begin + string.size(), begin});
    undecided = std::max(undecided, length_of_begin(held_, string));
  }
  found_ = first.first != std::string::npos;
  std::string shown = held_.substr(0, found_ ? first.second : held_.size() - undecided);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return found_ ? "" : std::exchange(held_, ""); }

}  // namespace caravan
