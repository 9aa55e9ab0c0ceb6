#include "caravan/base/system/error_report.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <unistd.h>

namespace caravan {
namespace {

bool write_for_launcher(const std::string& text) {
  const char* number = std::getenv(kErrorFileVariable);
  if (number == nullptr || *number == '\0') return false;
  const int fd = std::atoi(number);
  return fd > STDERR_FILENO && pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace

void report_error(const std::string& text) {
  const char* rank = std::getenv("RANK");
  const bool shares_stderr = rank == nullptr || std::string_view(rank) == "0";
  if (!write_for_launcher(text) || !shares_stderr) std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace caravan
