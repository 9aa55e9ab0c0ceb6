#pragma once

#include <optional>

#include <c10/util/Exception.h>

#include "caravan/base/error.h"

namespace caravan {

/// What `make` returns; nothing for a layout that cannot be rehearsed: it is not possible on these ranks, or has sizes
/// that no tensor has.
template <class Make>
auto if_possible(const Make& make) -> std::optional<decltype(make())> {
  try {
    return make();
  } catch (const Error&) {
    return std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace caravan
