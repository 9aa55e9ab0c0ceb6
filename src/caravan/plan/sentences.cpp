#include "caravan/plan/sentences.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/plan_text.h"

namespace caravan {
namespace {

constexpr double kWorthSaying = 0.01;  ///< a smaller difference is within the error of a prediction

/// Where the slower of two layouts loses its time: "waits 2.1 s more for dp".
std::string loss_text(const Prediction& slow, const Prediction& fast) {
  std::vector<std::pair<double, std::string>> losses;
  const auto add = [&](double more, const std::string& text) { losses.emplace_back(more, text); };
  std::set<std::string> axes;
  for (const auto& [axis, seconds] : slow.waits) axes.insert(axis);
  for (const std::string& axis : axes) {
    const auto of = [&](const Prediction& one) {
      const auto found = one.waits.find(axis);
      return found == one.waits.end() ? 0.0 : found->second;
    };
    const double more = of(slow) - of(fast);
    add(more, fmt::format("waits {} more for {}", short_seconds(more), wait_name(axis)));
  }
  const double computes = slow.computes - fast.computes;
  add(computes, fmt::format("computes {} longer", short_seconds(computes)));
  const auto most = std::ranges::max_element(losses);
  return most == losses.end() || most->first <= 0 ? "" : ": it " + most->second;
}

/// What the best layout gains from having a feature, or from not having it.
/// `with`: "with pipeline stages", "without zero3": what the other layout is the best with.
std::string sentence_of(const std::vector<std::string>& with, const ComparedLayout& best, const ComparedLayout& other) {
  const Prediction& one = other.prediction;
  const std::string features = join(with, ", and ");
  if (!one.fits()) {
    return fmt::format("none that was estimated {} fits: the least needs {} of {} ({})", features,
                       format_bytes(one.memory.total()), format_bytes(one.room_bytes), other.text);
  }
  return fmt::format("{} against {} for the best that was estimated {} ({}){}", short_seconds(best.prediction.seconds),
                     short_seconds(one.seconds), features, other.text, loss_text(one, best.prediction));
}

/// How much is missing where nothing fits.
std::vector<std::string> misfit_sentences(const std::vector<ComparedLayout>& best, size_t num_estimated,
                                          int num_ranks) {
  const Prediction& least = best.front().prediction;
  const bool is_device = least.memory.total() > least.room_bytes;
  const int64_t needed = is_device ? least.memory.total() : least.host_bytes;
  const int64_t room = is_device ? least.room_bytes : least.host_room_bytes;
  std::vector<std::string> sentences{
      fmt::format("none of the {} layouts that were estimated fits {} rank{}: the least needs {}, {} "
                  "more than the {} of a {}",
                  num_estimated, num_ranks, num_ranks == 1 ? "" : "s", format_bytes(needed),
                  format_bytes(needed - room), format_bytes(room), is_device ? "device" : "host")};
  for (size_t i = 0; i < std::min<size_t>(3, best.size()); ++i) {
    const Prediction& one = best[i].prediction;
    sentences.push_back(fmt::format("{}: {} in {}", best[i].text, format_bytes(one.memory.total()), one.peak_event));
  }
  return sentences;
}

}  // namespace

std::vector<std::string> sentences_of(const std::vector<ComparedLayout>& best,
                                      const std::vector<ComparedLayout>& estimated,
                                      const std::vector<std::string>& features, int num_ranks) {
  const Prediction& least = best.front().prediction;
  if (!least.fits()) return misfit_sentences(best, estimated.size(), num_ranks);
  // A layout that is the best in several ways has one sentence.
  std::vector<std::pair<const ComparedLayout*, std::vector<std::string>>> others;
  for (const std::string& feature : features) {
    const bool has = best.front().features.contains(feature);
    const auto other = std::ranges::find_if(
        estimated, [&](const ComparedLayout& one) { return one.features.contains(feature) != has; });
    if (other == estimated.end()) continue;
    const double more = other->prediction.seconds / least.seconds - 1;
    if (other->prediction.fits() && more <= kWorthSaying) continue;
    const auto known = std::ranges::find_if(others, [&](const auto& one) { return one.first->text == other->text; });
    std::vector<std::string>& with =
        known == others.end() ? others.emplace_back(&*other, std::vector<std::string>{}).second : known->second;
    with.push_back((has ? "without " : "with ") + feature);
  }
  std::vector<std::string> sentences;
  for (const auto& [other, with] : others) sentences.push_back(sentence_of(with, best.front(), *other));
  return sentences;
}

}  // namespace caravan
