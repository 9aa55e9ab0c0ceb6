#pragma once

#include <cstdint>

#include "caravan/data/sampler.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"

namespace caravan {

struct Evaluation {
  double loss = 0;           ///< nats per target token
  double bits_per_byte = 0;  ///< the same text in bits over its UTF-8 bytes: comparable between tokenizers
};

/// The loss of `model` over all of `windows`, shared out over the ranks of `axis`, `rows` windows at a time. Every rank
/// of the axis calls it; each gets the same bits. Sends 8 bytes.
Evaluation evaluate(Module& model, const ValidationWindows& windows, int64_t context, int64_t rows,
                    const MeshAxis& axis);

}  // namespace caravan
