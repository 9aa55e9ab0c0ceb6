#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/engine/strategy.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"
#include "caravan/registry/setting.h"
#include "caravan/registry/split_parts.h"
#include "caravan/step/stepper.h"
#include "caravan/techniques/data/zero.h"

namespace caravan {

/// Dtypes of a strategy: see Strategy.
struct StrategyDtypes {
  at::ScalarType compute = at::kFloat;
  at::ScalarType gradients = at::kFloat;
  std::optional<at::ScalarType> reduce{};
};

/// What the body of a data-parallel technique changes, and its inputs besides its setting. Its axis is dp, factored as
/// its entry says.
struct Arranging {
  Strategy& strategy;
  const Mesh& mesh;
  StrategyDtypes dtypes{};
  std::shared_ptr<CommHook> hook{};  ///< null: none
};

/// The part of a technique that needs libtorch, in addition to its entry in the registry.
struct TechniqueBody {
  std::function<void(const Arranging&, const Setting&)> apply{};  ///< for data parallelism
  /// Its own stepper (step/stepper.h); null: steps after which all ranks continue together. `timeout`: how long it
  /// waits for a peer.
  std::function<std::unique_ptr<Stepper>(StepperInputs inputs, const Setting&, std::chrono::milliseconds timeout)>
      make_stepper =
          [](StepperInputs, const Setting&, std::chrono::milliseconds) { return std::unique_ptr<Stepper>(); };
  /// For a stepper that is not rehearsed (Trait::rehearses): bytes that a rank may hold beyond those of a step with a
  /// barrier.
  std::function<int64_t(const Engine&)> most_in_flight = [](const Engine&) { return int64_t{0}; };
};

/// The inputs of a split's plan besides its setting. Its axis is factored as its entry says.
struct Splitting {
  const ModelConfig& model;
  Mesh& mesh;         ///< may get further axes
  SplitParts others;  ///< the splits whose plans it is joined with
};
/// The plan of the chosen entry.
Plan plan_of(const Setting& split, const Splitting& to);

/// The body of the chosen entry; without functions if it has none.
const TechniqueBody& body_of(const Setting& technique);
/// Cuts layers into the tiles of the chosen entry (techniques/tiling/tiling.h): after splits and stages, before data
/// parallelism.
void add_tiles(const Setting& setting, Strategy& strategy, Module& model, const Mesh& mesh);
/// Adds the hooks of the chosen entry around the forward of modules. Call it after everything else
/// (techniques/recompute/recompute.h).
void add_around(const Setting& setting, Strategy& strategy, Module& model);
/// The chosen hook; null for none.
std::shared_ptr<CommHook> make_hook(const Setting& hook);

/// Sets the dtypes in the options of a technique.
template <class Options>
Options with_dtypes(Options options, const StrategyDtypes& dtypes) {
  options.compute_dtype = dtypes.compute;
  options.gradient_dtype = dtypes.gradients;
  options.reduce_dtype = dtypes.reduce;
  return options;
}

/// The common options of zero3 and hsdp.
FsdpOptions fsdp_options(const Setting& setting);
/// The values of the keys share and accumulate.
Share share_of(const Setting& setting);
Accumulate accumulate_of(const Setting& setting);

}  // namespace caravan
