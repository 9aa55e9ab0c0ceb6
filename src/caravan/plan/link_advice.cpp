#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/hardware_advice.h"
#include "caravan/plan/if_possible.h"
#include "caravan/plan/plan_text.h"

namespace caravan {
namespace {

constexpr double kWaits = 0.2;    ///< share of a step that is worth a sentence
constexpr double kSlower = 1.01;  ///< a smaller difference is within the error of a prediction
constexpr size_t kMostRehearsed = 3;

/// What a rank sends between hosts in a step.
struct BetweenHosts {
  std::vector<std::string> axes{};
  double elements = 0, bytes = 0;
  double seconds = 0;  ///< if its calls follow each other
  double rate = 0;     ///< of one device, on its slowest link
  bool gathers = false;
};

bool is_of_pipeline(const std::string& axis) { return axis.starts_with("pp"); }

/// Whether ranks in ascending order are on more than one host.
bool is_between_hosts(const Hardware& hardware, const std::vector<int>& ranks) {
  int64_t first = 0, number = 0;
  std::optional<int64_t> seen;
  size_t next = 0;
  for (const HostKind& kind : hardware.hosts) {
    for (int64_t i = 0; i < kind.count; ++i, first += kind.devices, ++number) {
      for (; next < ranks.size() && ranks[next] < first + kind.devices; ++next) {
        if (seen && *seen != number) return true;
        seen = number;
      }
    }
  }
  return false;
}

double element_bytes(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }

/// Seconds of the calls of a timeline over some axes.
double call_seconds(const Rehearsal& rank, const StepTimeline& timeline, const std::vector<std::string>& axes,
                    const StepCosts& costs) {
  double sum = 0;
  for (const StepTimeline::Moment& moment : timeline.moments) {
    if (moment.kind != StepTimeline::Moment::Kind::begin) continue;
    const StepTimeline::Call& call = timeline.calls[static_cast<size_t>(moment.index)];
    if (call.verb == Verb::recv || std::ranges::find(axes, call.axis) == axes.end()) continue;
    std::vector<int> ranks = rank.ranks_of_axis.at(call.axis);
    if (call.verb == Verb::send) {
      const int peer = ranks[static_cast<size_t>(call.peer)];
      ranks = {std::min(peer, rank.rank), std::max(peer, rank.rank)};
    }
    sum += costs.seconds(call, ranks).seconds;
  }
  return sum;
}

/// Of a rank in the middle of the pipeline.
BetweenHosts sent_between_hosts(const Recipe& recipe, const Predictor& predictor) {
  const Hardware& hardware = predictor.hardware();
  const auto stages = static_cast<int>(recipe.pipeline.degree);
  const Rehearsal rank = predictor.rehearse_rank(recipe, stages / 2 * (predictor.num_ranks() / stages));
  BetweenHosts sent;
  for (const auto& [axis, ranks] : rank.ranks_of_axis) {
    if (axis == "world" || !is_between_hosts(hardware, ranks) || rank.bytes_sent(axis) == 0) continue;
    const double rate = hardware.level_of(ranks).bytes_per_second;
    sent.rate = sent.axes.empty() ? rate : std::min(rate, sent.rate);
    sent.axes.push_back(axis);
  }
  for (const SentCalls& calls : rank.sent) {
    if (std::ranges::find(sent.axes, calls.axis) == sent.axes.end()) continue;
    const bool is_sum = calls.verb == Verb::all_reduce || calls.verb == Verb::reduce_scatter;
    const std::string& dtype = is_sum ? recipe.precision.reduced_in() : recipe.precision.compute;
    sent.gathers |= calls.verb == Verb::all_gather && !is_of_pipeline(calls.axis);
    sent.elements += calls.bytes / element_bytes(dtype);
    sent.bytes += calls.bytes;
  }
  const double whole = call_seconds(rank, rank.timeline, sent.axes, predictor.costs());
  sent.seconds = whole;
  for (const Rehearsal::Shorter& shorter : rank.shorter) {
    sent.seconds += shorter.times * (whole - call_seconds(rank, shorter.timeline, sent.axes, predictor.costs()));
  }
  sent.seconds /= rank.num_steps;
  return sent;
}

/// Whether a layout waits for axes that have copies or parts of parameters or layers.
bool waits_for_parameters(const Prediction& one) {
  double sum = 0;
  for (const auto& [axis, seconds] : one.waits) {
    constexpr std::array kOthers{"world", "host", "disk", "launches"};
    if (!is_of_pipeline(axis) && std::ranges::find(kOthers, axis) == kOthers.end()) sum += seconds;
  }
  return sum > kWaits * one.seconds;
}

std::string text_of(const PlannedLayout& layout, const BetweenHosts& sent) {
  if (sent.bytes == 0) return layout.text + " sends nothing there";
  return fmt::format("{} sends {} elements over {}, {:.4g} GB in {}", layout.text, format_count(sent.elements),
                     join(sent.axes), sent.bytes / 1e9, short_seconds(sent.seconds));
}

}  // namespace

std::string link_advice(const SearchResult& result, const Predictor& predictor) {
  if (!result.fits()) return "";
  const PlannedLayout& best = result.best.front();
  std::vector<const PlannedLayout*> others;
  const auto consider = [&](const PlannedLayout& layout) {
    const bool is_slower = layout.prediction.seconds > kSlower * best.prediction.seconds;
    if (is_slower && waits_for_parameters(layout.prediction)) others.push_back(&layout);
  };
  if (result.own) consider(*result.own);
  std::ranges::for_each(result.estimated, consider);
  for (size_t i = 0; i < std::min(kMostRehearsed, others.size()); ++i) {
    // A search estimates layouts that cannot be rehearsed whole too.
    const auto sent = if_possible([&] { return sent_between_hosts(others[i]->recipe, predictor); });
    if (!sent || sent->seconds < kWaits * others[i]->prediction.seconds) continue;
    const auto least = if_possible([&] { return sent_between_hosts(best.recipe, predictor); });
    if (!least || least->seconds >= sent->seconds) continue;
    std::string advice;
    if (sent->gathers && !least->gathers) advice = ": do not shard parameters between hosts";
    if (best.recipe.pipeline.is_used()) advice += (advice.empty() ? ": use " : ", use ") + std::string("stages there");
    return fmt::format("between hosts ({:.4g} GB/s a device) a rank of {}; one of {}{}", sent->rate / 1e9,
                       text_of(*others[i], *sent), text_of(best, *least), advice);
  }
  return "";
}

}  // namespace caravan
