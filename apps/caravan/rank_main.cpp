// One rank of a job, or all of them as threads of this process: everything that needs tensors.
#include <cstdio>

#include <c10/util/Exception.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/run_main.h"
#include "caravan/base/error.h"

namespace caravan::app {
namespace {

int dispatch(const CommandLine& line) {
  switch (line.command) {
    case CommandLine::Command::train: return train(line.train);
    case CommandLine::Command::generate: return generate(line.generate);
    case CommandLine::Command::export_model: return export_model(line.export_model);
    case CommandLine::Command::import_model: return import_model(line.import_model);
    case CommandLine::Command::bench_comm: return bench_comm(line.bench);
    case CommandLine::Command::doctor: return doctor(line.doctor);
    default:
      throw UsageError(
          {"caravan-rank", "", "runs parts of train, generate, export, import, bench and doctor", "", "use caravan"});
  }
}

/// torch's errors carry a backtrace in what(): nothing for a user.
int run(const CommandLine& line) {
  try {
    return dispatch(line);
  } catch (const c10::OutOfMemoryError& error) {
    std::fprintf(stderr, "[caravan] out of memory: %s\n", error.what_without_backtrace());
    return 5;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "[torch] %s\n", error.what_without_backtrace());
    return 1;
  }
}

}  // namespace
}  // namespace caravan::app

int main(int argc, char** argv) { return caravan::app::run_main(argc, argv, caravan::app::run); }
