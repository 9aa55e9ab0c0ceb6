#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/options/option_table.h"
#include "caravan/base/system/cores.h"
#include "caravan/base/system/processor.h"

namespace caravan::app {
namespace {

void print_version() {
  fmt::print("{}\n", kVersion);
  fmt::print("torch        {}, {}\n", CARAVAN_LIBTORCH_VERSION, CARAVAN_LIBTORCH_DIR);
  fmt::print("compiler     {}, {}\n", CARAVAN_COMPILER, CARAVAN_BUILD_TYPE);
  fmt::print("MPI          {}\n", *CARAVAN_MPI_NAMES == '\0' ? "none" : CARAVAN_MPI_NAMES);
  fmt::print("processor    {}, {} usable cores\n", processor_class(), num_usable_cores());
}

}  // namespace

int about(const AboutArguments& arguments) {
  switch (arguments.what) {
    case AboutArguments::What::version: print_version(); break;
    case AboutArguments::What::completion: fmt::print("{}", completion_script(arguments.shell, option_table())); break;
    case AboutArguments::What::manual: fmt::print("{}", man_page(option_table())); break;
  }
  return 0;
}

}  // namespace caravan::app
