#pragma once

#include <string>

#include "apps/caravan/options.h"

namespace CLI {
class App;
}

namespace caravan::app {

/// Lists of `bench comm` as they stand on the command line; "": not given.
struct BenchWords {
  std::string verbs;
  std::string dtypes;
  std::string bytes;
};

void add_bench(CLI::App& app, BenchArguments& arguments, BenchWords& words);
void add_doctor(CLI::App& app, DoctorArguments& arguments);

/// Reads the lists into `arguments`. Throws UsageError for a word it does not know, naming the nearest.
void read_bench(const BenchWords& words, BenchArguments& arguments);

}  // namespace caravan::app
