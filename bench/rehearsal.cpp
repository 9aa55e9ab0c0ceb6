// Times the rehearsals that `caravan inspect` begins with: rehearsal RECIPE RANKS [KEY=VALUE..]
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/runtime.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/model/rehearse.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const caravan::Runtime runtime;
  const caravan::Recipe recipe = caravan::load_recipe(argv[1], {argv + 3, argv + argc});
  const int num_ranks = std::atoi(argv[2]);
  const auto begin = std::chrono::steady_clock::now();
  const auto all = caravan::rehearse_telling_ranks(recipe, recipe.model.vocabulary, num_ranks, 0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("{:.3f} s for {} ranks\n", seconds.count(), all.size());
  for (const caravan::Rehearsal& one : all) {
    fmt::print("  rank {}: {:.3f} MiB in {}, {} events\n", one.rank, static_cast<double>(one.peak.total()) / (1 << 20),
               one.peak_event, one.events.size());
  }
}
