#pragma once

#include <functional>

namespace caravan {

/// Runs the program of a rank, and reports an exception that ends it, of any type, whole and with the rank: `caravan run`
/// prints that of the rank that failed first, once; alone it goes to stderr. Returns the exit code of main(): 0, that of
/// the class of an Error, 5 out of memory, 1 for any other exception.
///
///   int main(int argc, char** argv) {
///     return run_program([&] { train(argv[1]); });
///   }
int run_program(const std::function<void()>& program);

}  // namespace caravan
