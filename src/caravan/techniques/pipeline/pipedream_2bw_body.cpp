#include "caravan/techniques/pipeline/window_stepper.h"

namespace caravan {

TechniqueBody pipedream_2bw_body() { return {.make_stepper = make_window_stepper}; }

}  // namespace caravan
