#include "apps/caravan/libtorch.h"

#include <dlfcn.h>

#include "caravan/base/error.h"

namespace caravan::app {

void require_libtorch(const std::filesystem::path& folder) {
  constexpr const char* kLibrary = "libtorch_cpu.so";
  std::error_code error;
  if (std::filesystem::exists(folder / kLibrary, error)) return;
  void* library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);  // takes a while, so only if it has been moved
  if (library == nullptr) {
    throw UsageError({"caravan", "libtorch", "is no longer in " + folder.string() + ", where it was at build time", "",
                      "set LD_LIBRARY_PATH to the lib folder of the same version of torch, or build Caravan again"});
  }
  ::dlclose(library);
}

}  // namespace caravan::app
