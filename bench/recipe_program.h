#pragma once

#include <cstdio>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/recipe/recipe.h"
#include "caravan/session/run_program.h"

namespace caravan {

/// The main of a program that takes a recipe, "" for the default one, and overrides: runs `body` on one rank.
inline int run_recipe_program(
    int argc, char** argv,
    const std::function<void(const Recipe& recipe, const std::shared_ptr<Communicator>& world)>& body) {
  if (argc < 2) {
    fmt::print(stderr, "{} RECIPE KEY=VALUE..: RECIPE may be \"\"\n", argv[0]);
    return 2;
  }
  return run_program([&] {
    const Runtime runtime;
    const Recipe recipe = load_recipe(argv[1], {argv + 2, argv + argc});
    run_thread_ranks(1, [&](const std::shared_ptr<Communicator>& world) { body(recipe, world); });
  });
}

}  // namespace caravan
