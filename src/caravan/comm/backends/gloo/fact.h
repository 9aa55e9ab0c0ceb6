#pragma once

#include <string>

namespace caravan::gloo {

/// The message of an exception of gloo or c10d without the source line before it and the advice or stack after it.
std::string plain_fact(std::string fact);

}  // namespace caravan::gloo
