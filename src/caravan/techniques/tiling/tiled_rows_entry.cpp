#include "caravan/registry/registry.h"

namespace caravan {

Entry tiled_rows_entry() {
  return {.family = "tiling",
          .name = "tiled_rows",
          .summary = "rows of weights that are gathered, used and freed one tile after another",
          .paper = "Rajbhandari et al., arXiv 2104.07857",
          .keys = {{{"tiles", OnResume::free},
                    "tiles of each weight; 1: layers stay whole",
                    int64_t{1},
                    whole_number({1, 1 << 20})},
                   {{"modules", OnResume::free},
                    "layers in tiles, * stands for any characters: \"head\", \"*.mlp.*\"",
                    std::vector<std::string>{"*"},
                    list_of_texts(),
                    [](const Setting& setting) -> std::string {
                      return setting.whole("tiles") > 1 ? ""
                                                        : "is used with " + setting.full_name("tiles") + " above 1";
                    }}},
          .traits = [](const Setting& setting) {
            Traits traits = usual_traits_of(setting);
            if (setting.whole("tiles") == 1) return traits;
            traits.has.erase(Trait::whole_matrices);
            traits.because = "weights are updated in " + setting.full_name("tiles") + " parts";
            return traits;
          }};
}

}  // namespace caravan
