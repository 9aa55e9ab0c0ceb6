#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "caravan/comm/backends/unwinding.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/group_info.h"

namespace caravan {

/// The base of every communicator that has peers: its first error, its end, and abort().
class BackendCommunicator : public Communicator {
 public:
  void abort(std::string_view reason) noexcept final;

  /// Fails everything outstanding and every later call with `error`, unless an earlier error has. Peers that cannot
  /// find out by themselves are told.
  virtual void end(const std::exception_ptr& error) noexcept = 0;
  /// Ends the world on all its ranks; their errors say `fact`.
  virtual void end_world(std::string_view fact) noexcept = 0;

 protected:
  BackendCommunicator(const GroupInfo& group, Lineage lineage);

  /// The error that ended this communicator; null while it is alive.
  const std::exception_ptr& first_error() const noexcept { return first_error_; }
  bool is_dead() const noexcept { return first_error_ != nullptr; }
  void throw_if_dead() const {
    if (first_error_ != nullptr) std::rethrow_exception(first_error_);
  }
  /// Keeps `error` and returns true if it is the first one.
  bool keep_first_error(const std::exception_ptr& error) noexcept;

  /// Every back-end's destructor begins with it: completes everything outstanding. While an exception unwinds the
  /// stack, peers may be waiting for calls that this rank will never make: then it abandons what is outstanding.
  void shut_down() noexcept;

 private:
  virtual size_t num_outstanding() const noexcept = 0;
  /// Returns when nothing is outstanding, with or without errors.
  virtual void complete_outstanding() noexcept = 0;
  /// Fails everything outstanding with `error`. Peers are told `reason` unless they see that this rank is gone.
  virtual void abandon(const std::exception_ptr& error, const std::string& reason) noexcept = 0;

  int world_rank_;
  Unwinding is_unwinding_;
  std::exception_ptr first_error_;
};

}  // namespace caravan
