#pragma once

#include <string>

namespace caravan::gloo {

/// What gloo or c10d says of a connection, without their source line before it and their advice or stack behind it.
std::string plain_fact(std::string fact);

}  // namespace caravan::gloo
