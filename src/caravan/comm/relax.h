#pragma once

namespace caravan {

/// Called between two polls of a flag that another core is about to set.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // about as long as x86's pause; `yield` does nothing on most of these cores
#endif
}

}  // namespace caravan
