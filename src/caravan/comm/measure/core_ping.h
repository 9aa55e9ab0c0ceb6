#pragma once

#include <optional>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// The distance of the cores of two ranks on one host: the time that a cache line takes from one to the other. On a
/// virtual machine it changes with the placement of the virtual cores. Independent of all back-ends. Ranks should be
/// pinned.
class CorePing {
 public:
  /// Ranks `a` and `b` share a page (a memfd, opened through /proc). Every rank of `world`.
  CorePing(Communicator& world, int a, int b);
  ~CorePing();
  CorePing(const CorePing&) = delete;
  CorePing& operator=(const CorePing&) = delete;

  /// Nanoseconds one way, the same value on every rank; takes about 10 ms. Empty if the two are on different hosts or
  /// share a core. Called by every rank of `world`.
  std::optional<double> measure();

 private:
  struct Table;
  void open_page();
  double play(bool serves);

  Communicator& world_;
  int a_;
  int b_;
  Table* table_ = nullptr;
};

}  // namespace caravan::measure
