// The rank program: one rank of a job, or all of them as threads. It runs every command that needs tensors.
#include <c10/util/Exception.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/run_main.h"
#include "caravan/base/error.h"
#include "caravan/base/system/error_report.h"

namespace caravan::app {
namespace {

int dispatch(const CommandLine& line) {
  switch (line.command) {
    case CommandLine::Command::train: return train(line.train);
    case CommandLine::Command::generate: return generate(line.generate);
    case CommandLine::Command::ask: return ask(line.ask);
    case CommandLine::Command::evaluate: return evaluate(line.evaluate);
    case CommandLine::Command::export_model: return export_model(line.export_model);
    case CommandLine::Command::import_model: return import_model(line.import_model);
    case CommandLine::Command::inspect:
      return line.inspect.layouts    ? inspect_layouts(line.inspect)
             : line.inspect.schedule ? inspect_schedule(line.inspect)
                                     : inspect_recipe(line.inspect);
    case CommandLine::Command::plan: return plan_recipe(line.plan);
    case CommandLine::Command::prove: return prove(line.prove);
    case CommandLine::Command::bench_comm: return bench_comm(line.bench);
    case CommandLine::Command::doctor:
      return line.doctor.tune               ? tune()
             : line.doctor.hardware.empty() ? doctor(line.doctor)
                                            : measure_hardware(line.doctor);
    default: throw UsageError({"caravan-rank", "", "does not run this command itself", "", "use the program caravan"});
  }
}

/// what() of torch's errors includes a backtrace, which does not help a user.
int run(const CommandLine& line) {
  try {
    return dispatch(line);
  } catch (const c10::OutOfMemoryError& error) {
    report_error(std::string("[caravan] out of memory: ") + error.what_without_backtrace());
    return 5;
  } catch (const c10::Error& error) {
    return report_failure("torch", error.what_without_backtrace());
  }
}

}  // namespace
}  // namespace caravan::app

int main(int argc, char** argv) { return caravan::app::run_main(argc, argv, caravan::app::run); }
