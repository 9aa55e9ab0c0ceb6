#include "caravan/techniques/compression/hook_keys.h"

namespace caravan {

Traits traits_of_residuals(const std::string& name, const std::string& sends) {
  Traits traits{
      .has = usual_traits(),
      .needs = {{Trait::all_reduces, "hook \"" + name +
                                         "\" compresses the all-reduce of whole gradients, and keeps 4 bytes a "
                                         "parameter on every rank; what sends otherwise may round: precision.reduce"}},
      .because = "hook \"" + name + "\" sends " + sends +
                 " and adds what it leaves out to the next gradients (error feedback)"};
  for (const Trait lacking :
       {Trait::scales_loss, Trait::rounds_gradients, Trait::rounds_reductions, Trait::many_reductions}) {
    traits.has.erase(lacking);
  }
  return traits;
}

}  // namespace caravan
