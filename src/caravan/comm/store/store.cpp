#include "caravan/comm/store/store.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "caravan/base/error.h"
#include "caravan/comm/backends/wait_policy.h"
#include "caravan/comm/store/counter.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/wire/errors.h"

namespace caravan {
namespace {

constexpr const char* kWhere = "store of this process";
constexpr std::chrono::milliseconds kMaxLocalWait{int64_t{1} << 40};  // now + this must not overflow

class LocalStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
    changed_.notify_all();
  }

  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    auto found = values_.end();
    const auto is_set = [&] { return (found = values_.find(key)) != values_.end(); };
    if (!changed_.wait_for(lock, std::min(timeout, kMaxLocalWait), is_set)) {
      throw key_not_set(key, timeout, kWhere);
    }
    return found->second;
  }

  bool has(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    return values_.find(key) != values_.end();
  }

  int64_t add(std::string_view key, int64_t amount) override {
    const std::lock_guard lock(mutex_);
    std::string& value = values_[std::string(key)];
    const auto sum = add_to_counter(value, amount);
    if (!sum) throw not_a_counter(key, value, amount, kWhere);
    changed_.notify_all();
    return *sum;
  }

  void remove(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

class PrefixedStore final : public Store {
 public:
  PrefixedStore(std::shared_ptr<Store> store, std::string prefix, std::vector<int> ranks)
      : store_(std::move(store)), prefix_(std::move(prefix) + "/"), ranks_(std::move(ranks)) {}

  void set(std::string_view key, std::string_view value) override { store_->set(full(key), value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return store_->get(full(key), timeout);
  }
  bool has(std::string_view key) override { return store_->has(full(key)); }
  int64_t add(std::string_view key, int64_t amount) override { return store_->add(full(key), amount); }
  void remove(std::string_view key) override { store_->remove(full(key)); }
  bool has_disconnected(int rank) override {
    return store_->has_disconnected(ranks_.empty() ? rank : ranks_.at(static_cast<size_t>(rank)));
  }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<Store> store_;
  std::string prefix_;
  std::vector<int> ranks_;
};

}  // namespace

std::shared_ptr<Store> local_store() { return std::make_shared<LocalStore>(); }

std::shared_ptr<Store> prefixed(std::shared_ptr<Store> store, std::string prefix, std::vector<int> ranks) {
  return std::make_shared<PrefixedStore>(std::move(store), std::move(prefix), std::move(ranks));
}

std::optional<std::string> get_from(Store& store, std::string_view key, int rank,
                                    std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const bool is_gone = store.has_disconnected(rank);  // what it had set before is visible by now
    const auto now = std::chrono::steady_clock::now();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::max(deadline, now) - now);
    try {
      return store.get(key, is_gone ? std::chrono::milliseconds(0) : std::min(left, kRendezvousCheckInterval));
    } catch (const CommError&) {
      if (store.has(key)) continue;  // throws if the store is lost
      if (is_gone || now >= deadline) return std::nullopt;
    }
  }
}

}  // namespace caravan
