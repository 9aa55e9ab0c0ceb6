#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace caravan {

/// Keys and small values that all ranks of a job see: where ranks find each other before they have a communicator.
/// Every method may be called by any rank at any time and throws CommError if the store is lost.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` is set. Throws CommError naming the key when `timeout` passes.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  /// True if `key` is set, without waiting.
  virtual bool has(std::string_view key) = 0;
  /// Adds to a counter that starts at 0; returns the sum.
  virtual int64_t add(std::string_view key, int64_t amount) = 0;
};

/// The same store under a prefix, so that two users cannot meet in one key.
std::shared_ptr<Store> prefixed(std::shared_ptr<Store> store, std::string prefix);

}  // namespace caravan
