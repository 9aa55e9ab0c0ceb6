#pragma once

#include <functional>
#include <string>

namespace caravan::testing {

/// The message of the `E` that `body` throws; "" if it does not throw.
template <typename E>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace caravan::testing
