#include "apps/caravan/run_main.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "apps/caravan/error_report.h"
#include "apps/caravan/standard_streams.h"
#include "caravan/base/error.h"

namespace caravan::app {

constexpr int kExitNoResource = 5;  // as ResourceError

namespace {

/// `code`, or that of a lost output if stdout could not be written.
int code_of_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  report_error(std::string("[caravan] standard output: cannot be written: ") + std::strerror(errno));
  return code == 0 ? kExitNoResource : code;
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(const CommandLine& line)>& run) {
  open_standard_streams();
  // Beyond the limit of file sizes (ulimit -f) a write then fails with EFBIG, an error with a message.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    std::string text;
    const auto line = parse_command_line(argc, argv, text);
    if (line) return code_of_output(run(*line));
    std::fputs(text.c_str(), stdout);
    return code_of_output(0);
  } catch (const Error& error) {
    report_error(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    report_error(
        "[caravan] out of memory\n  do: lower train.micro_batch if it is above 1, or use a smaller model or context");
    return kExitNoResource;
  } catch (const std::exception& error) {
    report_error(std::string("[caravan] ") + error.what());
    return 1;
  }
}

}  // namespace caravan::app
