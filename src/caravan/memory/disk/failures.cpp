#include "caravan/memory/disk/failures.h"

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/fd.h"
#include "caravan/base/text.h"

namespace caravan::disk {

std::exception_ptr failed_transfer(const std::filesystem::path& path, const Transfer& transfer, int error) {
  ErrorText text{.op = "disk", .subject = path.string(), .where = fmt::format("offset {}", transfer.offset)};
  if (error == kEndOfFile) {
    text.fact = "the file ends there: something has shortened it";
    text.action = "restart from the last checkpoint, and keep other programs out of that folder";
    return std::make_exception_ptr(DataError(std::move(text)));
  }
  text.fact = fmt::format("{} of {} fails: {}", transfer.is_write ? "a write" : "a read", format_bytes(transfer.bytes),
                          system_error(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT: text.action = "free some space, or add folders on other disks"; break;
    case EFBIG: text.action = "raise the limit of file sizes (ulimit -f)"; break;
    case EIO: text.action = "the disk is failing: see dmesg, and use a folder on another disk"; break;
    default: text.action = "use a folder on another disk"; break;
  }
  return std::make_exception_ptr(ResourceError(std::move(text)));
}

std::exception_ptr wrong_page(const std::filesystem::path& path, const Page& page, const ContentHash& found) {
  return std::make_exception_ptr(
      DataError({.op = "disk",
                 .subject = path.string(),
                 .fact = fmt::format("a page has the checksum {}, and {} was written: the disk or its memory returned "
                                     "other bytes than were written",
                                     found.hex(), page.hash.hex()),
                 .where = fmt::format("offset {}", page.offset),
                 .action = "restart from the last checkpoint"}));
}

}  // namespace caravan::disk
