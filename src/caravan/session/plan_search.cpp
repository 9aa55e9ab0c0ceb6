#include "caravan/session/plan_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/plan/estimated_layouts.h"
#include "caravan/plan/if_possible.h"
#include "caravan/registry/changed_keys.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

/// The less, the simpler: little offload, few stages, few other techniques, an early one of the list.
auto effort_of(const StepLayout& layout) {
  const auto offloaded =
      std::ranges::count_if(kOffloadKinds, [&](const char* kind) { return layout.offload.text(kind) != "none"; });
  const std::vector<std::string> names = names_of("data_parallel");
  const auto technique = std::ranges::find(names, layout.data_parallel.name()) - names.begin();
  const auto num_keys = static_cast<int64_t>(changed_keys(layout.data_parallel).size());
  const int64_t others = (layout.recompute.is_none() ? 0 : 1) + num_keys;
  return std::tuple(offloaded, layout.pp, layout.tp, others, technique, layout.micro_batches);
}

std::pair<bool, double> badness_of(const FoundLayout& one) {
  return badness(one.prediction, is_offload_used(one.layout.offload));
}

bool is_better(const FoundLayout& a, const FoundLayout& b) {
  const auto order_of = [](const FoundLayout& one) {
    return std::tuple(badness_of(one), effort_of(one.layout), one.text);
  };
  return order_of(a) < order_of(b);
}

/// The best first. Layouts within a hundredth of the best are as good, so that the simplest of these is the first.
void sort_layouts(std::vector<FoundLayout>& all) {
  constexpr double kAsGood = 1.01;
  std::ranges::sort(all, is_better);
  if (all.empty()) return;
  const auto [does_not_fit, least] = badness_of(all.front());
  const auto others = std::ranges::find_if(all, [&, fits = !does_not_fit, most = kAsGood * least](const auto& one) {
    return one.prediction.fits() != fits || badness_of(one).second > most;
  });
  const auto simplest = std::min_element(all.begin(), others, [](const FoundLayout& a, const FoundLayout& b) {
    return effort_of(a.layout) < effort_of(b.layout);
  });
  std::rotate(all.begin(), simplest, simplest + 1);
}

class StepSearch {
 public:
  StepSearch(const LayoutSpace& space, const LayoutPredictor& predictor, const std::function<bool()>& is_over)
      : space_(space), predictor_(predictor), layouts_(is_over) {}

  /// Null: the engine does not take it, or time is up.
  const FoundLayout* estimate(const StepLayout& layout) {
    const std::string text = space_.text(layout);
    return layouts_.find_or_make(text, [&]() -> std::optional<FoundLayout> {
      const auto prediction = or_why_not([&] { return predictor_.estimate(layout); });
      if (!prediction) return std::nullopt;
      return FoundLayout{layout, text, *prediction};
    });
  }

  /// To better neighbours, until there is none.
  void climb(const FoundLayout* from) {
    layouts_.climb(from, [&](const FoundLayout& one) {
      const FoundLayout* best = &one;
      for (const StepLayout& neighbour : space_.neighbours(one.layout)) {
        const FoundLayout* other = estimate(neighbour);
        if (other != nullptr && is_better(*other, *best)) best = other;
      }
      return best;
    });
  }

  std::vector<FoundLayout> all() const {
    std::vector<FoundLayout> all = layouts_.all();
    sort_layouts(all);
    return all;
  }

  /// Nothing if it cannot be rehearsed: the first time, why_not() says why.
  std::optional<Prediction> or_why_not(const std::function<Prediction()>& predict) {
    return if_possible([&] {
      try {
        return predict();
      } catch (...) {
        if (why_not_ == nullptr) why_not_ = std::current_exception();
        throw;
      }
    });
  }
  bool is_complete() const noexcept { return layouts_.is_complete(); }
  const std::exception_ptr& why_not() const noexcept { return why_not_; }

 private:
  const LayoutSpace& space_;
  const LayoutPredictor& predictor_;
  std::exception_ptr why_not_;
  EstimatedLayouts<FoundLayout> layouts_;
};

}  // namespace

LayoutPredictor::LayoutPredictor(const PlannedStep& step, const LayoutSpace& space, const KeptTensors& kept)
    : step_(step), space_(space), kept_(kept), costs_(step.hardware) {}

std::vector<Rehearsal> LayoutPredictor::rehearsed(const StepLayout& layout, int64_t micro_batches,
                                                  int64_t num_units) const {
  const bool is_accelerator = !step_.hardware.device_of(0).is_processor;
  // Ranks of accelerators have memory of their own.
  const auto per_host = static_cast<int>(step_.hardware.hosts.front().devices);
  const RehearsedWorld world{.axes = used_axes(ordered_axes(layout.dp, layout.pp, 1, 1, layout.tp)),
                             .ranks_per_host = is_accelerator ? 0 : per_host};
  std::vector<int> ranks;  // of one pipeline
  const int of_place = layout.dp * layout.tp;
  for (int place = 0; place < layout.pp; ++place) ranks.push_back(place * of_place);
  ParallelOptions options = step_.options;
  options.micro_batches = micro_batches;
  const int64_t of_rank = space_.limits().rows / layout.dp;
  const bool is_whole = micro_batches == layout.micro_batches;  // then the last one may be smaller than others
  const int64_t rows = is_whole ? of_rank : of_rank / layout.micro_batches * micro_batches;
  const std::vector<Technique> chosen = techniques(layout, num_units);
  const AcceleratorScope scope(is_accelerator);
  std::vector<Rehearsal> rehearsals =
      rehearse_module({net_with(num_units), chosen, step_.optimizer, options, step_.sample, rows}, kept_, world, ranks);
  for (Rehearsal& one : rehearsals) {
    one.slowest_rank = slowest_rank(step_.hardware, one.rank, of_place, step_.work.dtype);
    one.room_bytes = room_of(step_.hardware, one.rank, of_place);
  }
  return rehearsals;
}

const Trainable& LayoutPredictor::net_with(int64_t num_units) const {
  const int64_t all = space_.limits().num_units;
  if (num_units == all) return step_.net;
  const auto known = shorter_.find(num_units);
  if (known != shorter_.end()) return known->second;
  const auto count = static_cast<size_t>(all - num_units);
  return shorter_.emplace(num_units, TrainableParts::without_units(step_.net, step_.repeats.begin, count))
      .first->second;
}

bool LayoutPredictor::are_split_alike(const StepLayout& layout) const {
  if (layout.tp == 1) return true;
  const TensorChoice& split = space_.limits().tensors.at(layout.tp);
  if (!split.names.empty()) return false;  // not looked into
  const auto& parameters = step_.repeats.parameters;
  for (size_t i = step_.repeats.period; i < parameters.size(); ++i) {
    const auto& before = parameters[i - step_.repeats.period];
    for (size_t k = 0; k < parameters[i].size(); ++k) {
      if (!(layout_for(parameters[i][k], split.layouts) == layout_for(before[k], split.layouts))) return false;
    }
  }
  return true;
}

std::vector<Technique> LayoutPredictor::techniques(const StepLayout& layout, int64_t num_units) const {
  std::vector<Technique> all = space_.techniques(layout);
  if (num_units == space_.limits().num_units) return all;
  for (Technique& one : all) {
    auto* split = std::get_if<TensorChoice>(&one);
    if (split == nullptr) continue;
    split->layouts = TrainableParts::layouts_in(net_with(num_units), step_.net, split->layouts);
  }
  return all;
}

LayoutPredictor::Line LayoutPredictor::micro_batches_of(const StepLayout& layout, bool is_whole) const {
  const int64_t all = layout.micro_batches, pp = layout.pp;
  if (pp == 1) return all > 3 ? Line{2, 3, all} : Line{all, all, all};
  if (is_whole || all <= 4 * pp || all % pp != 0) return {all, all, all};
  return {2 * pp, 3 * pp, all};
}

/// Each stage loses as many of the units that are the same, so that the others stay where they are.
LayoutPredictor::Line LayoutPredictor::units_of(const StepLayout& layout) const {
  constexpr int64_t kLeastPeriods = 4, kLeastOfStage = 4;  // the first and the last ones are not like others
  const int64_t all = space_.limits().num_units, stages = space_.num_stages(layout);
  const int64_t round = stages * static_cast<int64_t>(step_.repeats.period);
  const int64_t periods = static_cast<int64_t>(step_.repeats.count) - (stages == 1 ? kLeastPeriods : 0);
  int64_t rounds = std::max<int64_t>(0, periods / stages);
  while (rounds > 0 && stages > 1 && (all - rounds * round) / stages < kLeastOfStage) --rounds;
  const int64_t low = all - rounds * round, high = low + round;
  if (rounds < 2 || low + high > all * 4 / 5 || !are_split_alike(layout)) return {all, all, all};
  return {low, high, all};
}

RepeatedBatches LayoutPredictor::batches_of(const StepLayout& layout, const Line& micro_batches) const {
  const auto& [few, more, all] = micro_batches;
  if (layout.pp == 1) return {few, more, all};
  PipelineChoice pipeline;
  pipeline.degree = layout.pp;
  pipeline.schedule = layout.schedule;
  return RepeatedBatches::of(pipeline, few, more, all);
}

Prediction LayoutPredictor::between(const StepLayout& layout, const Line& micro_batches, const Line& units) const {
  Prediction sum;
  for (const bool more_units : {false, true}) {
    if (more_units && units.is_point()) continue;
    const int64_t num_units = more_units ? units.high : units.low;
    const std::vector<Rehearsal> few = rehearsed(layout, micro_batches.low, num_units);
    const Prediction one = micro_batches.is_point()
                               ? predict_rehearsed(few, costs_)
                               : predict_repeated(few, rehearsed(layout, micro_batches.high, num_units),
                                                  batches_of(layout, micro_batches), costs_);
    add_share(sum, one, more_units ? units.share() : 1 - units.share());
  }
  complete(sum, step_.hardware, space_.limits().ranks, step_.work);
  return sum;
}

Prediction LayoutPredictor::predict(const StepLayout& layout) const {
  const int64_t all = space_.limits().num_units;
  return between(layout, micro_batches_of(layout, /*is_whole=*/true), {all, all, all});
}

Prediction LayoutPredictor::estimate(const StepLayout& layout) const {
  return between(layout, micro_batches_of(layout, /*is_whole=*/false), units_of(layout));
}

UnitRepeats find_repeats(const std::vector<TrainableParts::UnitFacts>& units, const StepTimeline& step) {
  // By unit, the kernels of its events.
  std::vector<std::vector<int32_t>> kernels(units.size());
  const auto unit_of = [&](const std::string& event) {
    const auto found = std::ranges::find_if(units, [&](const TrainableParts::UnitFacts& unit) {
      return event == "forward " + unit.name + " of micro-batch 0" ||
             event == "backward " + unit.name + " of micro-batch 0";
    });
    return static_cast<size_t>(found - units.begin());
  };
  std::vector<size_t> of_event;
  for (const std::string& event : step.events) of_event.push_back(unit_of(event));
  for (const StepTimeline::Moment& moment : step.moments) {
    const size_t unit = of_event[static_cast<size_t>(moment.event)];
    if (moment.kind == StepTimeline::Moment::Kind::kernel && unit < units.size()) kernels[unit].push_back(moment.index);
  }
  const auto are_same = [&](size_t a, size_t b) {
    return !kernels[a].empty() && units[a].shapes == units[b].shapes && kernels[a] == kernels[b];
  };
  constexpr size_t kLongest = 4;
  UnitRepeats best;
  for (size_t period = 1; period <= kLongest; ++period) {
    for (size_t begin = 0; begin + period <= units.size(); ++begin) {
      size_t end = begin + period;
      while (end < units.size() && are_same(end - period, end)) ++end;
      const size_t count = (end - begin) / period;
      if (count > 1 && count * period > best.count * best.period) best = {begin, period, count};
    }
  }
  for (size_t i = best.begin; i < best.begin + best.period * best.count; ++i) {
    best.parameters.push_back(units[i].parameters);
  }
  return best;
}

FoundLayouts search_step_layouts(const LayoutSpace& space, const LayoutPredictor& predictor,
                                 const std::function<bool()>& is_over, size_t most_rows) {
  constexpr size_t kClimbs = 4;
  StepSearch search(space, predictor, is_over);
  const auto climb_from = [&](int pp, int tp) {
    std::vector<FoundLayout> seeds;
    for (const StepLayout& seed : space.seeds(pp, tp)) {
      if (const FoundLayout* found = search.estimate(seed)) seeds.push_back(*found);
    }
    sort_layouts(seeds);
    if (!seeds.empty()) search.climb(search.estimate(seeds.front().layout));
  };
  // Few stages first, and to their best: rehearsals of many take long.
  const std::vector<int>& tensor_sizes = space.tensor_sizes();
  for (const int tp : tensor_sizes) {
    const std::vector<int> stages = space.stages(tp);
    for (const int pp : stages) {
      if (tp == tensor_sizes.front() || pp == stages.front()) climb_from(pp, tp);
    }
  }
  const std::vector<FoundLayout> known = search.all();
  for (size_t i = 0; i < std::min(kClimbs, known.size()); ++i) search.climb(search.estimate(known[i].layout));
  FoundLayouts found{.estimated = search.all(), .is_complete = search.is_complete(), .why_not = search.why_not()};
  const size_t least = std::min<size_t>(3, most_rows);
  size_t num_tries = 0;
  const auto predict = [&](const FoundLayout& one) {
    return search.or_why_not([&] { return predictor.predict(one.layout); });
  };
  const auto is_enough = [&](const auto& /*best*/) { return ++num_tries > 2 * most_rows; };
  found.best = predict_best(found.estimated, most_rows, least, predict, is_enough, sort_layouts);
  return found;
}

}  // namespace caravan
