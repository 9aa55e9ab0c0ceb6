#include "caravan/comm/backends/gloo/fact.h"

#include <algorithm>
#include <string_view>

namespace caravan::gloo {

std::string plain_fact(std::string fact) {
  const size_t source_end = fact.find("] ");
  if (fact.starts_with('[') && source_end != std::string::npos) fact.erase(0, source_end + 2);
  for (const std::string_view advice : {"\n", ". This is typically"})
    fact.resize(std::min(fact.find(advice), fact.size()));
  return fact;
}

}  // namespace caravan::gloo
