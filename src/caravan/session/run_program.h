#pragma once

#include <functional>

namespace caravan {

/// Runs the program of a rank, and reports an exception that ends it, of any type, whole and with the rank. Under
/// `caravan run` that of the rank that failed first is printed, once; without a launcher it goes to stderr. Returns the
/// exit code of main(): 0, that of the class of an Error, 5 for lack of memory, 1 for any other exception.
///
///   int main(int argc, char** argv) {
///     return run_program([&] { train(argv[1]); });
///   }
int run_program(const std::function<void()>& program);

}  // namespace caravan
