#pragma once

#include <string>

#include "apps/caravan/options.h"

namespace CLI {
class App;
}

namespace caravan::app {

/// Lists of `bench comm` as they stand on the command line.
struct BenchWords {
  std::string verbs = "all_reduce";
  std::string dtypes = "fp32";
  std::string bytes = "4KiB,64KiB,1MiB,16MiB,256MiB";
};

void add_bench(CLI::App& app, BenchArguments& arguments, BenchWords& words);
void add_doctor(CLI::App& app, DoctorArguments& arguments);

/// Reads the lists into `arguments`. Throws UsageError for a word it does not know, naming the nearest.
void read_bench(const BenchWords& words, BenchArguments& arguments);

}  // namespace caravan::app
