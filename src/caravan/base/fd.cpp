#include "caravan/base/fd.h"

#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

namespace caravan {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

std::string system_error(int error) {
  const char* name = strerrorname_np(error);
  return fmt::format("{} ({})", strerrordesc_np(error) != nullptr ? strerrordesc_np(error) : "error",
                     name != nullptr ? name : std::to_string(error).c_str());
}

}  // namespace caravan
