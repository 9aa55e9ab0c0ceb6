#include "caravan/engine/gradients/comm_hook.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::shared_ptr<CommHook> no_hook_body(const Setting&) { return nullptr; }

}  // namespace caravan
