#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "caravan/registry/value_kind.h"

namespace caravan {

class Setting;

/// Whether the ranks of a run may have different values of a key.
enum class AcrossRanks : uint8_t {
  equal,   ///< no: numbers or collectives depend on it
  differ,  ///< yes: it concerns only the host, or is a path whose content is compared instead
};

/// What a resumed run may do with a key.
enum class OnResume : uint8_t {
  shape,     ///< fixed; compared as the model's config, in which 0 is already replaced by the model's own rule
  function,  ///< fixed: the weights mean something else with another value
  history,   ///< fixed once the run has done a step: earlier steps were computed with it
  content,   ///< a path: may change, its content may not
  listed,    ///< may change; the user is told, since the results or the memory of the resumed run differ
  free,      ///< may change: no result depends on it, except for rounding, or it is checked separately
};

/// The name of a key and its role.
struct KeyName {
  std::string name;
  OnResume on_resume;
  AcrossRanks across_ranks = AcrossRanks::equal;
};

/// One key that an entry of the registry reads: "prefetch", in the section of its family. Entries of a family that
/// share a key list the same one, with initial values of their own.
struct SettingKey : KeyName {
  std::string help;
  RecipeValue initial;
  ValueKind kind;
  /// Why the key is not used with the present values of the others, although the chosen entry lists it; "" if it is
  /// used.
  std::function<std::string(const Setting&)> idle = [](const Setting&) { return std::string(); };
};

}  // namespace caravan
