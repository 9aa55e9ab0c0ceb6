#include "caravan/base/system/mapped_pages.h"

#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace caravan {

void drop_mapped_pages(std::span<const std::byte> bytes) noexcept {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // Also the first and the last page, which hold other bytes: nothing is lost of a file that is only read.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size() + page - 1) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace caravan
