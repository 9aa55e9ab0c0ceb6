#pragma once

#include <vector>

namespace caravan {

/// The cores the calling thread may run on, ascending: fewer than the host's in a container or under taskset. Empty if
/// the kernel does not report them.
std::vector<int> usable_cores();

/// Their number; the host's if the kernel does not report them. At least 1.
int num_usable_cores();

}  // namespace caravan
