#pragma once

#include <functional>

#include "apps/caravan/options.h"

namespace caravan::app {

/// The body of main() of both programs: opens closed standard streams, parses the command line, answers --help and
/// --version, and calls `run` for the rest. An exception is reported (report_error) and becomes its exit code.
int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run);

}  // namespace caravan::app
