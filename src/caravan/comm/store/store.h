#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// A key-value store for small values that all ranks of a job share. Ranks use it to find each other before they have a
/// communicator. Any rank may call any method at any time; all throw CommError if the connection to the store is lost.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` is set. Throws CommError naming the key if that takes longer than `timeout`.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  /// Whether `key` is set. Does not wait.
  virtual bool has(std::string_view key) = 0;
  /// Adds to a counter that starts at 0, and returns the new value.
  virtual int64_t add(std::string_view key, int64_t amount) = 0;
  /// Removes `key`; a no-op if it is not set.
  virtual void remove(std::string_view key) = 0;
  /// Whether `rank` was connected and no longer is. False for a store that does not know.
  virtual bool has_disconnected(int /*rank*/) { return false; }
};

/// A view of `store` in which all keys have a prefix, so that users do not share keys by accident. `ranks` maps the
/// ranks of a part of the job to those of the whole job; empty: they are the same.
std::shared_ptr<Store> prefixed(std::shared_ptr<Store> store, std::string prefix, std::vector<int> ranks = {});

/// The value of `key`, which `rank` sets; empty if `rank` disconnects before, or `deadline` passes.
std::optional<std::string> get_from(Store& store, std::string_view key, int rank,
                                    std::chrono::steady_clock::time_point deadline);

}  // namespace caravan
