#include "apps/caravan/run_main.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "apps/caravan/standard_streams.h"
#include "caravan/base/error.h"

namespace caravan::app {

constexpr int kExitNoResource = 5;  // as ResourceError

namespace {

/// `code`, unless what was printed has not come out.
int code_of_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "[caravan] standard output: cannot be written: %s\n", std::strerror(errno));
  return code == 0 ? kExitNoResource : code;
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run) {
  open_standard_streams();
  try {
    std::string text;
    const auto line = parse_command_line(argc, argv, text);
    if (line) return code_of_output(run(*line));
    std::fputs(text.c_str(), stdout);
    return code_of_output(0);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    std::fputs("[caravan] out of memory\n", stderr);
    return kExitNoResource;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[caravan] %s\n", error.what());
    return 1;
  }
}

}  // namespace caravan::app
