#pragma once

#include <functional>
#include <string>

namespace caravan::testing {

/// The message that `body` throws as `E`; "" if it throws nothing.
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
