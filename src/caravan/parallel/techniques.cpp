#include "caravan/parallel/techniques.h"

namespace caravan {

const std::vector<std::string>& data_parallel_techniques() {
  static const std::vector<std::string> names{"ddp"};
  return names;
}

}  // namespace caravan
