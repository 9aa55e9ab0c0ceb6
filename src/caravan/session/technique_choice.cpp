#include "caravan/session/technique_choice.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/session/trainable_parts.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_choice(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"parallelize", subject, fact, "", action});
}

/// The patterns that fit modules inside units of the model; one that fits a unit itself chooses what is a unit anyway.
std::vector<std::string> patterns_inside(const std::vector<std::string>& patterns, Module& model, bool is_own) {
  std::vector<std::string> names;
  for (const Module* block : model.blocks()) names.push_back(block->name());
  std::vector<std::string> inside;
  for (const std::string& pattern : patterns) {
    const auto fits = [&](const std::string& name) { return matches_pattern(pattern, name); };
    if (std::ranges::any_of(names, fits)) continue;
    if (is_own) {
      refuse_choice(pattern, fmt::format("fits none of the module's units, which are {}", some_of(names, 8)),
                    fmt::format("the nearest is '{}'; in_units() makes units of what is inside a module",
                                nearest_pattern(pattern, names)));
    }
    inside.push_back(pattern);
  }
  return inside;
}

/// What is chosen, and the families of which something was.
class Chosen {
 public:
  void add(const Technique& technique) {
    if (std::holds_alternative<TensorChoice>(technique)) {
      splits_own_ = true;
      return;
    }
    const auto* setting = std::get_if<Setting>(&technique);
    const std::string_view family = setting != nullptr ? setting->family().name : "precision";
    if (has(family)) refuse_choice(std::string(family), "is chosen twice", "leave one of them out");
    families_.push_back(family);
    if (setting == nullptr) {
      const auto& precision = std::get<PrecisionChoice>(technique);
      if (precision.scales_loss()) refuse_choice("precision", "fp16 needs a loss that is scaled", "use 'bf16'");
      set_dtypes(choice_, precision);
      return;
    }
    Setting* const place = place_of(family);
    if (family == "chunks") {
      refuse_choice("chunks", "is for recipes", "use `caravan train`, or add_chunks(), add_offload() and an Engine");
    }
    if (place == nullptr) {
      refuse_choice(std::string(family), "is not a technique of a model", "pass it to what makes the optimizer");
    }
    *place = *setting;
  }

  /// The degrees of what splits a model, by the axes of the mesh.
  void set_degrees(const Mesh& mesh) {
    const auto degree = [&](std::string_view axis) { return mesh.has(axis) ? mesh[axis].size() : int64_t{1}; };
    choice_.pipeline.degree = degree("pp");
    choice_.sequences = 1;
    for (Split* split : {&choice_.tensor_parallel, &choice_.context_parallel, &choice_.expert_parallel}) {
      const Family& family = split->kind.family();
      if (splits_own_ && !has(family.name)) continue;  // its axes are those of the layouts
      split->degree = degree(family.axis);
      choice_.sequences *= split->parts().rows;
      if (has(family.name) && !split->is_used() && !split->kind.is_first()) {
        refuse_choice(std::string(family.name), fmt::format("the mesh has no axis {}", family.axis),
                      fmt::format("make the session with {} above 1", family.axis));
      }
    }
  }

  void set_micro_batches(int64_t& micro_batches) {
    const int64_t asked = choice_.pipeline.micro_batches();
    if (asked != 0 && micro_batches != 1 && micro_batches != asked) {
      refuse_choice("micro_batches", fmt::format("is {}, and {} for the pipeline", micro_batches, asked),
                    "give one of them");
    }
    if (asked != 0) micro_batches = asked;
    const std::string wrong = choice_.pipeline.schedule.set("micro_batches", micro_batches);
    if (!wrong.empty()) refuse_choice("micro_batches", wrong, "use fewer");
  }

  /// A module computes with its own tensors: nothing can put a part of one in the place of the whole.
  void check_tiles(bool is_own) const {
    if (!is_own || choice_.tiling.whole("tiles") == 1) return;
    refuse_choice("tiling", "the weights of a torch::nn::Module are whole tensors, with which its forward computes",
                  "make several layers of the large one, each a unit (in_units), or use a Model of this library");
  }

  void check_tiers() const {
    for (const char* kind : kOffloadKinds) {
      if (choice_.offload.text(kind) != "auto") continue;
      refuse_choice(choice_.offload.full_name(kind), "is \"auto\", but without a batch no step can be rehearsed",
                    "name \"host\" or \"disk\", the optimizer first, then gradients, parameters and activations; "
                    "inspect() tells what a rank then needs");
    }
  }

  void check_steps() const {
    check_whole_gradient(choice_.data_parallel);
    if (choice_.pipeline.is_used()) check_whole_gradient(choice_.pipeline.schedule);
  }

  void check_patterns(Module& model, bool is_own) {
    if (choice_.data_parallel.reads("units")) {
      choice_.data_parallel.set("units", patterns_inside(choice_.data_parallel.texts("units"), model, is_own));
    }
    if (is_own && choice_.recompute.reads("modules")) patterns_inside(choice_.recompute.texts("modules"), model, true);
  }

  /// Gradients are whole between a step and the update, for clip_grad_norm() and torch::optim.
  StrategyChoice take() {
    choice_.waits_for_norm = true;
    return std::move(choice_);
  }

 private:
  bool has(std::string_view family) const { return std::ranges::find(families_, family) != families_.end(); }

  /// Null for a family that is not about a model.
  Setting* place_of(std::string_view family) {
    for (Setting* place : {&choice_.data_parallel, &choice_.hook, &choice_.recompute, &choice_.offload, &choice_.tiling,
                           &choice_.pipeline.schedule, &choice_.tensor_parallel.kind, &choice_.context_parallel.kind,
                           &choice_.expert_parallel.kind}) {
      if (place->family().name == family) return place;
    }
    return nullptr;
  }

  static void check_whole_gradient(const Setting& setting) {
    if (setting.has(Trait::whole_gradient)) return;
    refuse_choice(setting.full_name(), fmt::format("'{}' steps in a way of its own", setting.name()),
                  "use `caravan train`, which runs it");
  }

  StrategyChoice choice_;
  bool splits_own_ = false;
  std::vector<std::string_view> families_;
};

}  // namespace

std::vector<NamedLayout> tensor_layouts(const std::vector<Technique>& techniques, const Trainable& net,
                                        const Mesh& mesh) {
  const TensorChoice* chosen = nullptr;
  for (const Technique& technique : techniques) {
    const auto* tensor = std::get_if<TensorChoice>(&technique);
    if (tensor == nullptr) continue;
    if (chosen != nullptr) refuse_choice("tensor", "is chosen twice", "put all layouts into one");
    chosen = tensor;
  }
  if (chosen == nullptr) return {};
  const torch::nn::Module& module = TrainableParts::module_of(
      net, "parallelize", "choose a split of the registry, such as Setting(\"tensor_parallel\", \"1d\")");
  std::vector<NamedLayout> layouts = chosen->layouts;
  if (!chosen->names.empty()) {
    layouts = named_layouts(module, chosen->names, chosen->rules, mesh, chosen->extents);
  }
  if (layouts.empty()) refuse_choice("tensor", "has no layouts", "name parameters and their layouts");
  return layouts;
}

StrategyChoice choice_of(const std::vector<Technique>& techniques, Module& model, const Mesh& mesh, bool is_own,
                         int64_t& micro_batches) {
  Chosen chosen;
  for (const Technique& technique : techniques) chosen.add(technique);
  chosen.set_degrees(mesh);
  chosen.set_micro_batches(micro_batches);
  chosen.check_steps();
  chosen.check_tiers();
  chosen.check_tiles(is_own);
  chosen.check_patterns(model, is_own);
  return chosen.take();
}

}  // namespace caravan
