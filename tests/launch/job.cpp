/// A launcher for the tests: job NUM_RANKS LOG_DIR|- PROGRAM ARGUMENTS..
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "apps/caravan/launch/launch.h"
#include "caravan/base/error.h"

int main(int argc, char** argv) {
  if (argc < 4) return 99;
  caravan::LaunchOptions options;
  options.num_ranks = std::atoi(argv[1]);
  options.log_dir = std::strcmp(argv[2], "-") == 0 ? "" : argv[2];
  options.program = argv[3];
  options.arguments.assign(argv + 4, argv + argc);
  try {
    return caravan::launch(options);
  } catch (const caravan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
