#pragma once

#include <string>

namespace caravan {

/// Why something cannot be used here: the parts of an error message.
struct Misfit {
  std::string key;  ///< key to name: "data_parallel.shard"; "": the caller knows
  std::string fact;
  std::string action;
  bool has_other_choice = false;  ///< the action also names another technique
};

}  // namespace caravan
