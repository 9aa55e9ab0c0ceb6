#include "caravan/comm/shared/activity.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace caravan::shared {

void Activity::record(const Descriptor& call, std::string_view communicator) noexcept {
  Entry entry{.call = call};
  std::memcpy(entry.communicator.data(), communicator.data(),
              std::min(communicator.size(), entry.communicator.size() - 1));
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &entry, sizeof(entry));

  const uint32_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

std::optional<Activity::Entry> Activity::read() const noexcept {
  constexpr int kTries = 100;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const uint32_t before = version_.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) {
      Entry entry;
      std::memcpy(static_cast<void*>(&entry), words.data(), sizeof(entry));
      return entry;
    }
  }
  return std::nullopt;
}

std::string Activity::text(int rank) const {
  const std::optional<Entry> entry = read();
  if (!entry.has_value()) return fmt::format("rank {} has called nothing yet", rank);
  const uint32_t outstanding = outstanding_.load(std::memory_order_relaxed);
  return fmt::format("rank {} last called {}, operation {} of \"{}\", {}", rank, to_string(entry->call),
                     entry->call.sequence, entry->communicator.data(),
                     outstanding == 0 ? std::string("and has nothing outstanding")
                                      : fmt::format("and has {} outstanding", outstanding));
}

}  // namespace caravan::shared
