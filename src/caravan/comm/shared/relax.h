#pragma once

namespace caravan::shared {

/// Between two looks at a flag that another core is about to set.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace caravan::shared
