#pragma once

#include <string>

namespace caravan {

/// Why something cannot be used where it is: the parts of an error message.
struct Misfit {
  std::string key;  ///< what to name: "data_parallel.shard"; "": whoever asks knows
  std::string fact;
  std::string action;
  bool has_other_choice = false;  ///< the action names another technique too
};

}  // namespace caravan
