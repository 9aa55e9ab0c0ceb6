#include "apps/caravan/launch/libtorch.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"

namespace caravan::app {

namespace {

constexpr const char* kLibrary = "libtorch_cpu.so";
constexpr uint64_t kBeside = uint64_t{64} << 20;  // its constructors, the other libraries, stacks

/// Otherwise the linker, or a constructor of libtorch before main(), would end the rank.
void check_address_space(uint64_t library_bytes) {
  const int64_t limit = address_space_limit();
  if (limit < 0 || static_cast<uint64_t>(limit) >= library_bytes + kBeside) return;
  throw ResourceError({"caravan", "address space",
                       fmt::format("a process may use {}, but libtorch alone takes about {}", format_bytes(limit),
                                   format_bytes(static_cast<int64_t>(library_bytes))),
                       "ulimit -v", "raise the limit: ulimit -v unlimited"});
}

}  // namespace

void require_libtorch(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / kLibrary, error)) {
    const uintmax_t bytes = std::filesystem::file_size(folder / kLibrary, error);
    if (!error) check_address_space(bytes);
    return;
  }
  void* library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);  // takes a while, so only if it has been moved
  if (library == nullptr) {
    throw UsageError({"caravan", "libtorch", "is no longer in " + folder.string() + ", where it was at build time", "",
                      "set LD_LIBRARY_PATH to the lib folder of the same version of torch, or build Caravan again"});
  }
  ::dlclose(library);
}

}  // namespace caravan::app
