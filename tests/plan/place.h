#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"
#include "caravan/recipe/recipe.h"
#include "tests/needs.h"

namespace caravan::testing {

using Keys = std::vector<std::string>;

inline Recipe recipe_of(Keys keys, const Keys& more = {}) {
  keys.insert(keys.end(), {"data.tokenizer=bytes", "model.dropout=0", "precision.compute=bf16"});
  keys.insert(keys.end(), more.begin(), more.end());
  needs_chosen(keys);
  return load_recipe("", keys);
}

/// Sequences of 2,048 tokens.
inline Keys llama(int64_t layers, int64_t width, int64_t heads, int64_t hidden, int64_t batch) {
  return {"model.kind=llama",
          "model.tie_embeddings=false",
          "model.vocabulary=32000",
          "model.context=2048",
          "model.layers=" + std::to_string(layers),
          "model.width=" + std::to_string(width),
          "model.heads=" + std::to_string(heads),
          "model.hidden=" + std::to_string(hidden),
          "train.global_batch=" + std::to_string(batch)};
}
inline Keys llama7(int64_t batch) { return llama(32, 4096, 32, 11008, batch); }

/// Some hardware, and predictions there.
class Place {
 public:
  explicit Place(Hardware hardware) : hardware_(std::move(hardware)), costs_(hardware_) {}
  explicit Place(const HardwareChoice& choice) : Place(preset_hardware(choice)) {}

  int num_ranks() const { return static_cast<int>(hardware_.num_devices()); }
  const Hardware& hardware() const { return hardware_; }
  Predictor predictor() const { return {hardware_, costs_, num_ranks(), 0}; }
  Prediction estimate(const Recipe& recipe) const { return predictor().estimate(recipe); }
  PlannedLayout layout(const Recipe& recipe) const {
    return {recipe, layout_text(recipe, num_ranks()), estimate(recipe)};
  }
  PlannedLayout best(const Recipe& recipe) const {
    // Far more than it takes: what is chosen must not depend on the speed of the machine.
    const SearchResult result = search_layouts(recipe, predictor(), {.seconds = 60, .most_rows = 1});
    EXPECT_TRUE(result.is_complete);
    EXPECT_TRUE(result.fits());
    return result.best.front();
  }

 private:
  Hardware hardware_;
  HardwareCosts costs_;
};

}  // namespace caravan::testing
