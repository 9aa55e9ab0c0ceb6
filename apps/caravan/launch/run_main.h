#pragma once

#include <functional>
#include <string>

#include "apps/caravan/options/options.h"

namespace caravan::app {

/// The body of main() of both programs: opens closed standard streams, parses the command line, answers --help and
/// --version, and calls `run` for the rest. An exception is reported (report_error) and becomes its exit code. An
/// exception for lack of memory in a thread of a library ends the process with the same report.
int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run);

/// Reports an exception that is not an Error as "[source] text". Returns its exit code: that of a lack of memory if
/// there is none left, because libraries report it in many ways; else 1.
int report_failure(const std::string& source, const std::string& text);

}  // namespace caravan::app
