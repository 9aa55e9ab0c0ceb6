#pragma once

namespace caravan::testing {

/// Called by main() after InitGoogleTest: `--cases=tests/mesh/box_test.cpp,Shm/` runs the cases written in these files
/// and those of suites instantiated under these prefixes. A test of ctest chooses its part of a program this way, so
/// that a new case needs no line in CMake. Without `--cases` nothing changes. Exits with 2 if a file or the whole
/// choice has no case.
void choose_cases(int argc, char** argv);

}  // namespace caravan::testing
