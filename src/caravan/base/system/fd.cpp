#include "caravan/base/system/fd.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <poll.h>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>

namespace caravan {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

bool wait_for_events(int fd, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left + 1, 0, INT_MAX / 2)));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
  }
}

std::string system_error(int error) {
  const char* name = strerrorname_np(error);
  return fmt::format("{} ({})", strerrordesc_np(error) != nullptr ? strerrordesc_np(error) : "error",
                     name != nullptr ? name : std::to_string(error).c_str());
}

}  // namespace caravan
