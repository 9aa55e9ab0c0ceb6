// One rank of a job, or all of them as threads of this process: everything that needs tensors.
#include <cstdio>
#include <exception>
#include <new>

#include <c10/util/Exception.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/options.h"
#include "apps/caravan/standard_streams.h"
#include "caravan/base/error.h"

namespace caravan::app {
namespace {

int run(int argc, char** argv) {
  std::string text;
  const auto line = parse_command_line(argc, argv, text);
  if (!line) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  switch (line->command) {
    case CommandLine::Command::train: return train(line->train);
    case CommandLine::Command::generate: return generate(line->generate);
    case CommandLine::Command::export_model: return export_model(line->export_model);
    case CommandLine::Command::import_model: return import_model(line->import_model);
    default:
      throw UsageError({"caravan-rank", "", "runs parts of train, generate, export and import", "", "use caravan"});
  }
}

}  // namespace
}  // namespace caravan::app

int main(int argc, char** argv) {
  caravan::app::open_standard_streams();
  try {
    return caravan::app::run(argc, argv);
  } catch (const caravan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  } catch (const c10::OutOfMemoryError& error) {
    std::fprintf(stderr, "[caravan] out of memory: %s\n", error.what_without_backtrace());
    return 5;
  } catch (const std::bad_alloc&) {
    std::fputs("[caravan] out of memory\n", stderr);
    return 5;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "[torch] %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[caravan] %s\n", error.what());
    return 1;
  }
}
