#pragma once

#include <set>
#include <string>
#include <vector>

#include "caravan/memory/chunks/chunk_layout.h"
#include "tests/memory/chunks/chunk_step.h"

namespace caravan::testing {

/// GPT-2's blocks and last norm, in the order of its definition; embeddings lie apart (they are used twice).
struct Gpt2Tensors {
  std::vector<ChunkTensor> tensors;
  std::vector<std::vector<int>> units;  ///< tensors of each block, and of the norm
};

inline Gpt2Tensors gpt2_tensors(int layers, int64_t h) {
  Gpt2Tensors result;
  const auto unit = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    result.units.emplace_back();
    for (const int64_t size : sizes) {
      result.units.back().push_back(static_cast<int>(result.tensors.size()));
      result.tensors.push_back({name + "." + std::to_string(result.units.back().size()), size});
    }
  };
  // ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj: weight and bias of each
  for (int i = 0; i < layers; ++i)
    unit("h." + std::to_string(i), {h, h, 3 * h * h, 3 * h, h * h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h});
  unit("ln_f", {h, h});
  return result;
}

/// A step in the chunks of the size that wastes least, of one to one and a half layers.
inline ChunkStep gpt2_step(int layers, int64_t h) {
  const Gpt2Tensors gpt2 = gpt2_tensors(layers, h);
  const int64_t layer = 12 * h * h + 13 * h;
  const ChunkLayout layout =
      search_chunk_size(gpt2.tensors, {.smallest = 4 * h * h, .largest = layer * 3 / 2, .step = 64 * h});
  ChunkStep step{.num_chunks = layout.num_chunks,
                 .chunk_bytes = 2 * layout.chunk_elems,    // fp16
                 .state_bytes = 12 * layout.chunk_elems};  // fp32: master copy and two moments
  for (const std::vector<int>& tensors : gpt2.units) {
    std::set<int> chunks;
    for (const int tensor : tensors) chunks.insert(layout.slots[static_cast<size_t>(tensor)].chunk);
    step.units.emplace_back(chunks.begin(), chunks.end());
  }
  return step;
}

}  // namespace caravan::testing
