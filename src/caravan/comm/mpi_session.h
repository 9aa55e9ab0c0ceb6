#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "caravan/comm/messages/transport.h"

namespace caravan::mpi {

/// MPI of this process, as libcaravan_mpi_<name>.so gives it: the only code that is compiled against one MPI's headers,
/// whose binary interface no other MPI shares. It throws std::runtime_error only, and is never unloaded.
class Session {
 public:
  virtual ~Session() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// "Open MPI v4.1.4".
  virtual const std::string& library() const noexcept = 0;

  /// The text (less than 2,048 bytes) that rank 0 gives. Every rank calls it; throws if `timeout` passes.
  virtual std::string from_rank_0(const std::string& text, std::chrono::milliseconds timeout) = 0;

  /// Connections of their own for one world. Every rank calls it, in the same order. No single MPI message carries more
  /// than `largest_piece` bytes: MPI counts in ints.
  virtual std::shared_ptr<messages::Transport> connect(size_t largest_piece) = 0;
};

/// Grows with every change of this file, messages/transport.h or what they include.
inline constexpr int kInterface = 1;

}  // namespace caravan::mpi

extern "C" {
/// kInterface, as the object was compiled.
[[gnu::visibility("default")]] int caravan_mpi_interface();
/// The one session of this process; the first call initialises MPI unless the program has done so.
[[gnu::visibility("default")]] caravan::mpi::Session* caravan_mpi_session();
}
