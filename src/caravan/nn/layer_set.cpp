#include "caravan/nn/layer_set.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr std::string_view kEvery = "every ";

/// The whole number that `text` is, spaces around it aside.
int64_t layer_number(std::string_view text, std::string_view all) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= 0) return number;
  throw UsageError({"model", "layers", fmt::format("'{}' names no layers", all), "",
                    "write \"every 6\", or the numbers of layers from 0 on: \"0, 3\""});
}

}  // namespace

LayerSet LayerSet::every(int64_t n) {
  LayerSet set;
  set.every_ = n;
  return set;
}

LayerSet LayerSet::of(const std::vector<bool>& is_member) {
  LayerSet set;
  for (size_t layer = 0; layer < is_member.size(); ++layer) {
    if (is_member[layer]) set.listed_.push_back(static_cast<int64_t>(layer));
  }
  if (set.listed_.empty()) return set;
  const LayerSet regular = every(set.listed_.front() + 1);
  return regular.members(static_cast<int64_t>(is_member.size())) == is_member ? regular : set;
}

LayerSet LayerSet::parse(std::string_view text) {
  if (text.empty()) return {};
  if (text.starts_with(kEvery)) {
    const int64_t n = layer_number(text.substr(kEvery.size()), text);
    if (n == 0) layer_number("none", text);
    return every(n);
  }
  LayerSet set;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    set.listed_.push_back(layer_number(text.substr(begin, end - begin), text));
    begin = end + 1;
  }
  std::ranges::sort(set.listed_);
  set.listed_.erase(std::unique(set.listed_.begin(), set.listed_.end()), set.listed_.end());
  return set;
}

bool LayerSet::has(int64_t layer) const noexcept {
  return every_ > 0 ? layer % every_ == every_ - 1 : std::ranges::binary_search(listed_, layer);
}

std::vector<bool> LayerSet::members(int64_t layers) const {
  std::vector<bool> all;
  for (int64_t layer = 0; layer < layers; ++layer) all.push_back(has(layer));
  return all;
}

std::string LayerSet::to_string() const { return every_ > 0 ? fmt::format("every {}", every_) : join(listed_); }

}  // namespace caravan
