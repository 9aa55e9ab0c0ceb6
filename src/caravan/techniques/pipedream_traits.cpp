#include "caravan/techniques/pipedream_traits.h"

namespace caravan {

Traits traits_of_pipedream(const std::string& name) {
  return {.has = {Trait::splits_stages, Trait::bounded_lead, Trait::runs_processes, Trait::all_reduces,
                  Trait::rounds_reductions, Trait::threads_may_differ, Trait::whole_weights, Trait::many_reductions},
          .needs = {{Trait::whole_weights, name + " keeps versions of whole weights on each rank"},
                    {Trait::many_reductions, name + " reduces gradients once for each micro-batch"}},
          .because = "the stages of " + name + " run whole layers and step on their own"};
}

}  // namespace caravan
