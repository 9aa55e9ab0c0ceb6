#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "caravan/base/error.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/store.h"

namespace caravan::testing {

/// A local store that lists its keys, counts its calls, and can be lost.
class CountingStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    note(key);
    store_->set(key, value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    note();
    return store_->get(key, timeout);
  }
  bool has(std::string_view key) override {
    note();
    return store_->has(key);
  }
  int64_t add(std::string_view key, int64_t amount) override {
    note(key);
    return store_->add(key, amount);
  }
  void remove(std::string_view key) override {
    note();
    const std::lock_guard lock(mutex_);
    keys_.erase(std::string(key));
    store_->remove(key);
  }

  size_t num_keys() const {
    const std::lock_guard lock(mutex_);
    return keys_.size();
  }

  std::atomic<int> num_calls = 0;
  std::atomic<bool> is_lost = false;

 private:
  void note(std::string_view key = {}) {
    ++num_calls;
    if (is_lost) throw CommError({.op = "store", .fact = "the store is lost"});
    const std::lock_guard lock(mutex_);
    if (!key.empty()) keys_.insert(std::string(key));
  }

  std::shared_ptr<Store> store_ = local_store();
  mutable std::mutex mutex_;
  std::set<std::string> keys_;
};

}  // namespace caravan::testing
