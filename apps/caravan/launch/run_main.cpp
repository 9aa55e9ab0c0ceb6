#include "apps/caravan/launch/run_main.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/launch/standard_streams.h"
#include "caravan/base/error.h"
#include "caravan/base/system/error_report.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"

namespace caravan::app {

constexpr int kExitNoResource = 5;  // as ResourceError

namespace {

std::string out_of_memory(const std::string& detail) {
  const int64_t limit = address_space_limit();
  const bool is_limited = limit >= 0;
  return fmt::format(
      "[caravan] out of memory{}{}{}\n  do: lower train.micro_batch if it is above 1, or use a smaller model or "
      "context{}",
      detail.empty() ? "" : ": ", detail,
      is_limited ? fmt::format("\n  where: this process may use {} of address space (ulimit -v)", format_bytes(limit))
                 : "",
      is_limited ? ", or raise the limit" : "");
}

bool can_get_memory() {
  constexpr size_t kProbeBytes = size_t{64} << 20;
  void* memory = mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, kProbeBytes);
  return true;
}

std::terminate_handler abort_with_message = nullptr;

/// For exceptions that cannot be caught, such as in a thread of a library.
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    report_error(out_of_memory(""));
    _exit(kExitNoResource);
  } catch (...) {
    // The handler of the standard library prints it.
  }
  abort_with_message();
  std::abort();
}

/// `code`, or the code of a lost output if stdout could not be written.
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
  abort_with_message = std::set_terminate(on_terminate);
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
    report_error(out_of_memory(""));
    return kExitNoResource;
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return report_failure("caravan", error.what());
    report_error(
        fmt::format("[caravan] cannot start a thread: {}\n  do: use fewer ranks or threads, or raise the limits "
                    "of processes and of address space (ulimit -u, ulimit -v)",
                    error.what()));
    return kExitNoResource;
  } catch (const std::exception& error) {
    return report_failure("caravan", error.what());
  }
}

int report_failure(const std::string& source, const std::string& text) {
  const bool has_memory = can_get_memory();
  report_error(has_memory ? fmt::format("[{}] {}", source, text) : out_of_memory(text));
  return has_memory ? 1 : kExitNoResource;
}

}  // namespace caravan::app
