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

/// Fetches the cache line of `address` for a store that follows later.
inline void prefetch_for_store(const void* address) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));  // no operation on older processors
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace caravan
