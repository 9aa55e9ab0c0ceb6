#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "caravan/data/sampler.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"

namespace caravan {

struct Evaluation {
  double loss = 0;           ///< nats per target token
  double bits_per_byte = 0;  ///< bits per UTF-8 byte of the text: comparable between tokenizers
};

struct EvaluationOptions {
  int64_t rows = 1;                           ///< windows of one forward pass
  int64_t max_windows = 0;                    ///< evaluated in all, evenly spread over the text; 0: every window
  std::function<bool()> stop_requested = {};  ///< empty: never
  std::function<void(int64_t done, int64_t total)> progress = {};  ///< rounds of forward passes; may be empty
};

/// The loss of `model` over `windows`, split over the ranks of `axis`. Every rank of the axis calls it with equal
/// sizes, makes the same number of forward passes, and gets the same bits. Nothing if stop_requested() was true on any
/// rank, which is noticed after each forward pass. Of a part of the windows, bits_per_byte assumes that a token stands
/// for as many bytes as on average in the whole text. Sends 8 bytes per forward pass, and 16.
std::optional<Evaluation> evaluate(Module& model, const ValidationWindows& windows, const MeshAxis& axis,
                                   const EvaluationOptions& options);

}  // namespace caravan
