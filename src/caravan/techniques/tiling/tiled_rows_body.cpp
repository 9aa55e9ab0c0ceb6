#include "caravan/techniques/technique_body.h"
#include "caravan/techniques/tiling/tiling.h"

namespace caravan {

void tiled_rows_body(Strategy& strategy, Module& model, const Mesh& mesh, const Setting& setting) {
  add_tiling(strategy, model, mesh, {.tiles = setting.whole("tiles"), .modules = setting.texts("modules")});
}

}  // namespace caravan
