#include "apps/caravan/launch/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace caravan::app {

void open_standard_streams() noexcept {
  int opened = 0;
  do {
    opened = open("/dev/null", O_RDWR);  // the lowest free descriptor
  } while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened >= 0) close(opened);
}

}  // namespace caravan::app
