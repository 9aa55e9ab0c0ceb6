#include "caravan/comm/c10d_store.h"

#include <algorithm>
#include <thread>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store_errors.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// One call at a time: c10d's client holds its lock while it waits, so nothing waits inside it.
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

 private:
  template <class Call>
  std::invoke_result_t<Call> ask(const Call& call) {
    try {
      return call();
    } catch (const std::exception& exception) {
      throw CommError({.op = "store",
                       .fact = fmt::format("the {} is lost: {}", where_, exception.what()),
                       .action = "see why the process that serves it ended"});
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string where_;
};

}  // namespace

std::shared_ptr<Store> wrap_c10d_store(c10::intrusive_ptr<c10d::Store> store, std::string where) {
  return std::make_shared<WrappedStore>(std::move(store), std::move(where));
}

}  // namespace caravan
