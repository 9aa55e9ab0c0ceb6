#include "caravan/techniques/context/context_parallel.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

Plan ulysses_body(const Splitting& to, const Setting&) {
  return context_parallel(to.model, to.mesh,
                          {.ulysses = "cp", .head_parts = to.others.heads, .stream_parts = to.others.stream});
}

}  // namespace caravan
