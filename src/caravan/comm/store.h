#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  /// Whether `rank` is known to have gone: it was connected, and is no more. False where that is not known.
  virtual bool has_left(int /*rank*/) { return false; }
};

/// The same store under a prefix, so that two users cannot meet in one key. `ranks`: what the ranks of a part of the
/// job are called in the whole; empty: the same.
std::shared_ptr<Store> prefixed(std::shared_ptr<Store> store, std::string prefix, std::vector<int> ranks = {});

/// The value of `key`, which `rank` sets; empty if it is not set by then, or `rank` has left without.
std::optional<std::string> get_from(Store& store, std::string_view key, int rank,
                                    std::chrono::steady_clock::time_point deadline);

}  // namespace caravan
