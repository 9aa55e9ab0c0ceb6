#pragma once

#include <string>
#include <vector>

namespace caravan {

/// The names of the data-parallel techniques, the default first: the choices of data_parallel.technique in a recipe,
/// known without libtorch. make_strategy knows what each is.
const std::vector<std::string>& data_parallel_techniques();

}  // namespace caravan
