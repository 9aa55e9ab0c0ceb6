#pragma once

#include <memory>
#include <optional>
#include <string>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// How far apart the cores of two ranks of one host are: the time a cache line takes from one to the other, one way.
/// It tells in which of its modes a virtual machine is; no back-end's code is in it. Ranks should be pinned.
class CorePing {
 public:
  /// Ranks `a` and `b` share a page (a memfd, opened through /proc). Every rank of `world`.
  CorePing(Communicator& world, int a, int b);
  ~CorePing();
  CorePing(const CorePing&) = delete;
  CorePing& operator=(const CorePing&) = delete;

  /// Nanoseconds, the same on every rank, in about 10 ms; nothing if the two are not on one host, or share one core.
  /// Every rank of `world`.
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
