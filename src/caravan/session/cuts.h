#pragma once

#include <optional>
#include <string>

#include "caravan/engine/engine.h"

namespace caravan {

/// A trained parameter of which this rank has a part, beside the stages of a pipeline.
struct CutParameter {
  std::string name;
  std::string axis;  ///< over which it is sharded
};

/// Of one parameter, whether it is trained or not.
std::optional<CutParameter> cut_of(Engine& engine, const Parameter& parameter);
/// The first one; nothing: an optimizer of this rank gets whole parameters.
std::optional<CutParameter> first_cut(Engine& engine);

}  // namespace caravan
