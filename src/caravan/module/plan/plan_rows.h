#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "caravan/module/plan/plan.h"

namespace caravan {

/// The rows of a plan resolved for one model. The layouts of parameters and of the model's inputs name each of the
/// plan's axes; those of a module's inputs and outputs name the axes that change.
struct PlanRows {
  struct OfParameter {
    Layout sharded;
    Layout unsharded;
    Layout compute;
    bool operator==(const OfParameter&) const noexcept = default;
    /// "tp=I, unsharded tp=R, compute tp=P": names each level that differs from the previous one.
    std::string to_string() const;
  };
  struct OfModule {
    std::vector<std::optional<Layout>> inputs;
    std::vector<std::optional<Layout>> outputs;
  };
  std::map<std::string, OfParameter> parameters;  ///< all parameters of the model
  std::map<std::string, OfModule> modules;        ///< all modules of the model
  std::vector<Layout> inputs;                     ///< of the model
};

/// Throws as apply().
PlanRows resolve_rows(const Plan& plan, Module& model, const Mesh& mesh, size_t num_inputs);

}  // namespace caravan
