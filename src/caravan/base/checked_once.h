#pragma once

#include <map>
#include <mutex>

namespace caravan {

/// Caches the results of a function whose results are costly to check. Thread-safe.
template <class Key, class Value>
class CheckedOnce {
 public:
  /// Calls `make` once for each key, under the lock: `make` must not call it again.
  template <class Make>
  Value get(const Key& key, const Make& make) {
    const std::lock_guard lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) found = values_.emplace(key, make()).first;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> values_;
};

}  // namespace caravan
