#include "caravan/comm/store/c10d_store.h"

#include <algorithm>
#include <thread>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/wire/errors.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Polls: c10d's client holds its lock while it waits, so a wait inside it would block other threads.
class WrappedStore final : public Store {
 public:
  WrappedStore(c10::intrusive_ptr<c10d::Store> store, std::string where)
      : store_(std::move(store)), where_(std::move(where)) {}

  void set(std::string_view key, std::string_view value) override {
    ask([&] { store_->set(std::string(key), std::vector<uint8_t>(value.begin(), value.end())); });
  }
  std::string get(std::string_view key, milliseconds timeout) override {
    const auto deadline = steady_clock::now() + timeout;
    for (milliseconds pause{1}; !has(key); pause = std::min(pause * 2, milliseconds(50))) {
      if (steady_clock::now() >= deadline) throw key_not_set(key, timeout, where_);
      std::this_thread::sleep_for(pause);
    }
    return ask([&] {
      const std::vector<uint8_t> value = store_->get(std::string(key));
      return std::string(value.begin(), value.end());
    });
  }
  bool has(std::string_view key) override {
    return ask([&] { return store_->check({std::string(key)}); });
  }
  int64_t add(std::string_view key, int64_t amount) override {
    return ask([&] { return store_->add(std::string(key), amount); });
  }
  void remove(std::string_view key) override {
    ask([&] { store_->deleteKey(std::string(key)); });
  }

 private:
  template <class Call>
  std::invoke_result_t<Call> ask(const Call& call) {
    try {
      return call();
    } catch (const std::exception& exception) {
      throw CommError({.op = "store",
                       .fact = fmt::format("the {} is lost: {}", where_, exception.what()),
                       .action = "find out why the process that serves it ended"});
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string where_;
};

class C10dStore final : public c10d::Store {
 public:
  C10dStore(std::shared_ptr<caravan::Store> store, milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<C10dStore>(store_, timeout_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, {reinterpret_cast<const char*>(value.data()), value.size()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(key, timeout_);
    return {value.begin(), value.end()};
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override {
    const bool is_set = store_->has(key);
    store_->remove(key);
    return is_set;
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::ranges::all_of(keys, [&](const std::string& key) { return store_->has(key); });
  }
  int64_t getNumKeys() override {
    throw InternalError({.op = "store", .fact = "c10d asked for the number of keys, which our store does not count"});
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto deadline = steady_clock::now() + timeout;
    for (const std::string& key : keys) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
      store_->get(key, std::max(left, milliseconds(0)));
    }
  }

 private:
  std::shared_ptr<caravan::Store> store_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store, milliseconds timeout) {
  return c10::make_intrusive<C10dStore>(std::move(store), timeout);
}

std::shared_ptr<Store> wrap_c10d_store(c10::intrusive_ptr<c10d::Store> store, std::string where) {
  return std::make_shared<WrappedStore>(std::move(store), std::move(where));
}

}  // namespace caravan
