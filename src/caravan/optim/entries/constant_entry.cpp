#include "caravan/registry/registry.h"

namespace caravan {

Entry constant_entry() { return {.family = "learning_rate", .name = "constant", .summary = "stays at lr"}; }

}  // namespace caravan
