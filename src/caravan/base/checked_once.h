#pragma once

#include <map>
#include <mutex>

namespace caravan {

/// Values of a function that is costly to check, by its arguments: `make` returns one and has checked it, once each.
/// Thread-safe.
template <class Key, class Value>
class CheckedOnce {
 public:
  template <class Make>
  Value of(const Key& key, const Make& make) {
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
