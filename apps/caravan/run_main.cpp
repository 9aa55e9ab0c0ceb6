#include "apps/caravan/run_main.h"

#include <cstdio>
#include <exception>
#include <new>

#include "apps/caravan/standard_streams.h"
#include "caravan/base/error.h"

namespace caravan::app {

int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run) {
  open_standard_streams();
  try {
    std::string text;
    const auto line = parse_command_line(argc, argv, text);
    if (line) return run(*line);
    std::fputs(text.c_str(), stdout);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    std::fputs("[caravan] out of memory\n", stderr);
    return 5;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[caravan] %s\n", error.what());
    return 1;
  }
}

}  // namespace caravan::app
