#pragma once

#include <functional>

#include "apps/caravan/options.h"

namespace caravan::app {

/// The body of main() of both programs: opens closed standard streams, reads the command line, answers --help and
/// --version itself, and hands the rest to `run`. What is thrown is printed to stderr and becomes its exit code.
int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run);

}  // namespace caravan::app
