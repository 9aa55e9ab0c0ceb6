#pragma once

#include <string>

#include "apps/caravan/options.h"

namespace CLI {
class App;
}

namespace caravan::app {

/// The lists of `bench comm` as given on the command line; "": not given.
struct BenchWords {
  std::string verbs;
  std::string dtypes;
  std::string bytes;
};

void add_bench(CLI::App& app, BenchArguments& arguments, BenchWords& words);
void add_doctor(CLI::App& app, DoctorArguments& arguments);

/// Parses the lists into `arguments`. Throws UsageError for an unknown word, naming the nearest valid one.
void read_bench(const BenchWords& words, BenchArguments& arguments);

}  // namespace caravan::app
