#include "caravan/comm/backends/mpi/library.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/own_file.h"
#include "caravan/base/text.h"

namespace caravan::mpi {
namespace {

constexpr const char* kRequest = "CARAVAN_MPI_LIBRARY";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(std::string subject, std::string fact, std::string action) {
  throw UsageError(
      {.op = "mpi", .subject = std::move(subject), .fact = std::move(fact), .where = "", .action = std::move(action)});
}

/// Beside the program; otherwise its name, for the dynamic linker's search.
std::string path_of(const std::string& name) {
  const std::string file = fmt::format("libcaravan_mpi_{}.so", name);
  const std::filesystem::path own = own_file(file);
  return own.empty() ? file : own.string();
}

template <class Function>
Function symbol(void* object, const char* name, const std::string& path) {
  void* found = dlsym(object, name);
  if (found == nullptr) {
    refuse(path, fmt::format("is not an MPI library of Caravan: it has no {}", name),
           "build it with -DCARAVAN_MPI=..., from the same source as this program");
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

const std::vector<std::string>& built() {
  static const std::vector<std::string> names = [] {
    std::istringstream text(CARAVAN_MPI_BUILT);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    return words;
  }();
  return names;
}

std::string launcher() {
  if (!variable("OMPI_COMM_WORLD_SIZE").empty()) return "openmpi";
  return variable("PMI_SIZE").empty() ? "" : "mpich";
}

std::string choose(const std::string& requested, const std::string& launcher, std::span<const std::string> built) {
  if (requested.find('/') != std::string::npos) return requested;
  const std::string name = !requested.empty()  ? requested
                           : !launcher.empty() ? launcher
                           : built.empty()     ? ""
                                               : built.front();
  if (std::ranges::find(built, name) != built.end()) return name;
  const std::string there =
      built.empty() ? "it was built for no MPI" : fmt::format("it was built only for {}", join(built));
  if (requested.empty()) {
    refuse("the back-end mpi",
           launcher.empty() ? there : fmt::format("the launcher is that of {}, and {}", name, there),
           fmt::format("configure with -DCARAVAN_MPI={}", launcher.empty() ? "openmpi or mpich" : launcher));
  }
  refuse(kRequest, fmt::format("there is no \"{}\": {}", name, there),
         built.empty() ? "configure with -DCARAVAN_MPI=openmpi or mpich"
                       : fmt::format("set it to {}, or to the path of a library", nearest(name, built)));
}

MpiSession& session(const RankInfo& info) {
  const std::string choice = choose(variable(kRequest), launcher(), built());
  const std::string path = choice.find('/') != std::string::npos ? choice : path_of(choice);
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    refuse(path, fmt::format("cannot be loaded: {}", dlerror()),
           fmt::format("install that MPI, or set {} to the path of another library", kRequest));
  }
  const int interface = symbol<int (*)()>(object, "caravan_mpi_interface", path)();
  if (interface != kInterface) {
    refuse(path, fmt::format("is of version {}, this program of {}", interface, kInterface),
           "build both from the same source");
  }
  MpiSession* session = nullptr;
  try {
    session = symbol<MpiSession* (*)()>(object, "caravan_mpi_session", path)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    refuse(path, exception.what(), "fix that, or choose another back-end");
  }
  if (session->rank() != info.rank || session->size() != info.world_size) {
    refuse(path,
           fmt::format("its MPI ({}) says that this is rank {} of {}, the launcher that it is rank {} of {}",
                       session->library(), session->rank(), session->size(), info.rank, info.world_size),
           fmt::format("start the ranks with the mpirun of that MPI, or set {} to the launcher's ({})", kRequest,
                       join(built())));
  }
  return *session;
}

}  // namespace caravan::mpi
