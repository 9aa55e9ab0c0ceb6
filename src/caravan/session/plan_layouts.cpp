#include "caravan/session/plan_layouts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/plan/neighbours.h"
#include "caravan/registry/changed_keys.h"
#include "caravan/schedule/pipeline_choice.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

bool may_choose(const Setting& setting) { return is_exact(setting) && setting.has(Trait::runs_processes); }

/// The entries of a family with usable values on so many ranks of its axis.
std::vector<Setting> proposals(std::string_view family, int64_t ranks) {
  std::vector<Setting> all;
  for (const std::string& name : names_of(family)) {
    Setting setting(family, name);
    setting.entry().propose(setting, ranks);
    if (may_choose(setting)) all.push_back(std::move(setting));
  }
  return all;
}

/// With another value of one key.
std::vector<Setting> variants(const Setting& setting, int64_t ranks) {
  std::vector<Setting> all;
  for (const SettingKey& key : setting.entry().keys) {
    auto [values, numbers] = values_of(setting, key, ranks);
    values.insert(values.end(), numbers.begin(), numbers.end());
    for (const RecipeValue& value : values) {
      Setting other = setting;
      if (value == setting.value(key.name) || !other.set(key.name, value).empty()) continue;
      if (may_choose(other) && why_idle(other, key.name).empty()) all.push_back(std::move(other));
    }
  }
  return all;
}

std::string words_of(const Setting& setting) {
  std::string text = setting.name();
  for (const auto& [key, value] : changed_keys(setting)) {
    if (key != "micro_batches") text += fmt::format(" {} {}", key, to_toml(value));
  }
  return text;
}

}  // namespace

LayoutSpace::LayoutSpace(LayoutLimits limits) : limits_(std::move(limits)) {
  const TensorChoice* fixed_tensor = nullptr;
  for (const Technique& technique : limits_.fixed) {
    if (const auto* tensor = std::get_if<TensorChoice>(&technique)) {
      fixed_tensor = tensor;
      continue;
    }
    const auto* setting = std::get_if<Setting>(&technique);
    const std::string_view family = setting == nullptr ? "" : setting->family().name;
    if (family == "data_parallel") {
      first_.data_parallel = *setting;
    } else if (family == "pipeline") {
      first_.schedule = *setting;
    } else if (family == "recompute") {
      first_.recompute = *setting;
    } else if (family == "offload") {
      first_.offload = *setting;
    } else {
      extra_.push_back(technique);
    }
  }
  for (const int64_t tp : divisors(limits_.ranks, fixed_tensor != nullptr ? 2 : 1, limits_.ranks)) {
    const int size = static_cast<int>(tp);
    if (fixed_tensor != nullptr) limits_.tensors[size] = *fixed_tensor;
    if ((tp == 1 || limits_.tensors.contains(size)) && !stages(size).empty()) tensor_sizes_.push_back(size);
  }
}

std::vector<int> LayoutSpace::stages(int tp) const {
  std::vector<int> all;
  for (const int64_t pp : divisors(limits_.ranks / tp, is_fixed("pipeline") ? 2 : 1, limits_.num_units)) {
    if (limits_.rows % (limits_.ranks / tp / pp) == 0) all.push_back(static_cast<int>(pp));
  }
  return all;
}

bool LayoutSpace::is_fixed(std::string_view family) const {
  return std::ranges::any_of(limits_.fixed, [&](const Technique& technique) {
    const auto* setting = std::get_if<Setting>(&technique);
    return setting != nullptr && setting->family().name == family;
  });
}

StepLayout LayoutSpace::with_stages(StepLayout layout, int pp, int tp) const {
  layout.pp = pp;
  layout.tp = tp;
  layout.dp = limits_.ranks / pp / tp;
  const std::vector<int64_t> counts = divisors(limits_.rows / layout.dp);
  const auto enough = std::ranges::lower_bound(counts, layout.micro_batches);
  layout.micro_batches = enough == counts.end() ? counts.back() : *enough;
  if (const int64_t fixed = first_.schedule.whole("micro_batches"); fixed != 0 && pp > 1) layout.micro_batches = fixed;
  if (!is_fixed("data_parallel")) {
    if (layout.dp == 1) layout.data_parallel = first_.data_parallel;  // on one rank all techniques are one
    layout.data_parallel.entry().propose(layout.data_parallel, layout.dp);
  }
  if (pp == 1) layout.schedule = first_.schedule;
  return layout;
}

std::vector<StepLayout> LayoutSpace::seeds(int pp, int tp) const {
  std::vector<StepLayout> all;
  const std::vector<int64_t> counts =
      pp == 1 ? std::vector<int64_t>{1, 4, 16, limits_.rows} : std::vector<int64_t>{pp, 4 * pp};
  for (const int64_t micro_batches : counts) {
    StepLayout seed = first_;
    seed.micro_batches = micro_batches;
    seed = with_stages(seed, pp, tp);
    all.push_back(seed);
    if (is_fixed("recompute")) continue;
    std::vector<Setting> recomputes = proposals("recompute", pp);
    const auto other = std::ranges::find_if(recomputes, [](const Setting& one) { return !one.is_none(); });
    if (other == recomputes.end()) continue;
    seed.recompute = *other;  // a climb tries the others
    all.push_back(seed);
  }
  return all;
}

void LayoutSpace::add_data(std::vector<StepLayout>& all, const StepLayout& from) const {
  if (from.dp == 1 || is_fixed("data_parallel")) return;
  const auto add = [&](std::vector<Setting> settings) {
    for (Setting& setting : settings) {
      StepLayout& other = all.emplace_back(from);
      other.data_parallel = std::move(setting);
    }
  };
  add(proposals("data_parallel", from.dp));
  add(variants(from.data_parallel, from.dp));
}

void LayoutSpace::add_stages(std::vector<StepLayout>& all, const StepLayout& from) const {
  const std::vector<int> counts = stages(from.tp);
  const auto at = std::ranges::find(counts, from.pp);
  if (at != counts.begin()) all.push_back(with_stages(from, *(at - 1), from.tp));
  if (at + 1 < counts.end()) all.push_back(with_stages(from, *(at + 1), from.tp));
  if (from.pp == 1 || is_fixed("pipeline")) return;
  for (Setting& schedule : proposals("pipeline", from.pp)) {
    StepLayout& other = all.emplace_back(from);
    other.schedule = std::move(schedule);
  }
}

/// Ranks go from copies to parts, or back, and the stages stay.
void LayoutSpace::add_tensor(std::vector<StepLayout>& all, const StepLayout& from) const {
  const auto at = std::ranges::find(tensor_sizes_, from.tp);
  const auto add = [&](int tp) {
    if (std::ranges::count(stages(tp), from.pp) > 0) all.push_back(with_stages(from, from.pp, tp));
  };
  if (at != tensor_sizes_.begin()) add(*(at - 1));
  if (at + 1 < tensor_sizes_.end()) add(*(at + 1));
}

void LayoutSpace::add_recompute(std::vector<StepLayout>& all, const StepLayout& from) const {
  if (is_fixed("recompute")) return;
  for (Setting& setting : proposals("recompute", from.pp)) {
    if (setting == from.recompute) continue;
    StepLayout other = from;
    other.recompute = std::move(setting);
    all.push_back(other);
    for (const int64_t times : {2, 4, 8}) {
      if (from.micro_batches % times != 0) break;
      other.micro_batches = from.micro_batches / times;
      all.push_back(other);
    }
  }
}

void LayoutSpace::add_offload(std::vector<StepLayout>& all, const StepLayout& from) const {
  if (is_fixed("offload")) return;
  for (const std::string_view kind : kOffloadKinds) {
    const bool is_activations = kind == kOffloadKinds.back();
    if (is_activations ? !limits_.offloads_activations : !limits_.offloads_state) continue;
    StepLayout& other = all.emplace_back(from);
    other.offload.set(kind, std::string(from.offload.text(kind) == "none" ? "host" : "none"));
  }
}

void LayoutSpace::add_micro_batches(std::vector<StepLayout>& all, const StepLayout& from) const {
  if (from.pp > 1 && first_.schedule.whole("micro_batches") != 0) return;
  for (const int64_t count : nearest(divisors(limits_.rows / from.dp), from.micro_batches, 3)) {
    if (count == from.micro_batches) continue;
    all.emplace_back(from).micro_batches = count;
  }
}

std::vector<StepLayout> LayoutSpace::neighbours(const StepLayout& layout) const {
  std::vector<StepLayout> all;
  add_data(all, layout);
  add_stages(all, layout);
  add_tensor(all, layout);
  add_recompute(all, layout);
  add_offload(all, layout);
  add_micro_batches(all, layout);
  return all;
}

std::vector<Technique> LayoutSpace::techniques(const StepLayout& layout) const {
  std::vector<Technique> all;
  if (layout.tp > 1) all.emplace_back(limits_.tensors.at(layout.tp));
  if (layout.pp > 1) all.emplace_back(layout.schedule);
  if (layout.dp > 1 || is_fixed("data_parallel")) all.emplace_back(layout.data_parallel);
  if (!layout.recompute.is_none()) all.emplace_back(layout.recompute);
  if (is_offload_used(layout.offload)) all.emplace_back(layout.offload);
  all.insert(all.end(), extra_.begin(), extra_.end());
  return all;
}

int64_t LayoutSpace::num_stages(const StepLayout& layout) const {
  PipelineChoice pipeline;
  pipeline.degree = layout.pp;
  pipeline.schedule = layout.schedule;
  return layout.pp == 1 ? 1 : pipeline.num_stages();
}

std::string LayoutSpace::text(const StepLayout& layout) const {
  std::vector<std::string> parts{fmt::format("dp {}", layout.dp)};
  if (layout.pp > 1) {
    parts[0] = fmt::format("pp {} ({}) x {}", layout.pp, layout.schedule.name(), parts[0]);
    const int64_t of_rank = num_stages(layout) / layout.pp;
    if (of_rank > 1) parts.push_back(fmt::format("{} stages a rank", of_rank));
  }
  if (layout.tp > 1) parts[0] += fmt::format(" x tp {}", layout.tp);
  if (layout.dp > 1) parts.push_back(words_of(layout.data_parallel));
  if (!layout.recompute.is_none()) parts.push_back("recompute " + words_of(layout.recompute));
  for (const char* kind : kOffloadKinds) {
    if (layout.offload.text(kind) != "none") parts.push_back(fmt::format("{} on {}", kind, layout.offload.text(kind)));
  }
  parts.push_back(fmt::format("{} x {} rows", layout.micro_batches, limits_.rows / layout.dp / layout.micro_batches));
  return join(parts);
}

std::set<std::string> LayoutSpace::features(const StepLayout& layout) const {
  std::set<std::string> all{layout.data_parallel.name()};
  if (layout.pp > 1) all.insert("pipeline stages");
  if (layout.tp > 1) all.insert("tensor parallelism");
  if (!layout.recompute.is_none()) all.insert("recomputation");
  if (is_offload_used(layout.offload)) all.insert("offload");
  return all;
}

std::vector<std::string> LayoutSpace::feature_names() const {
  std::vector<std::string> all{"pipeline stages", "tensor parallelism", "recomputation", "offload"};
  for (const std::string& name : names_of("data_parallel")) all.push_back(name);
  return all;
}

}  // namespace caravan
