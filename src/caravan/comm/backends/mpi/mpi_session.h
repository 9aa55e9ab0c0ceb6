#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "caravan/comm/backends/messages/transport.h"

namespace caravan::mpi {

/// The interface of libcaravan_mpi_<name>.so, the only code that is compiled against the headers of an MPI, since MPIs
/// do not share an ABI. Throws only std::runtime_error. Never unloaded.
class MpiSession {
 public:
  virtual ~MpiSession() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// "Open MPI v4.1.4".
  virtual const std::string& library() const noexcept = 0;

  /// Returns the text of rank 0, which has less than 2,048 bytes. Every rank calls it. Throws if `timeout` passes.
  virtual std::string from_rank_0(const std::string& text, std::chrono::milliseconds timeout) = 0;

  /// Connections for one world. Every rank calls it, in the same order. Messages of more than `largest_piece` bytes are
  /// sent in pieces, because MPI counts in ints.
  virtual std::shared_ptr<messages::Transport> connect(size_t largest_piece) = 0;
};

/// Increment with every change to this file, messages/transport.h or what they include.
inline constexpr int kInterface = 1;

}  // namespace caravan::mpi

extern "C" {
/// kInterface when the library was compiled.
[[gnu::visibility("default")]] int caravan_mpi_interface();
/// The session of this process. The first call initialises MPI unless the program has.
[[gnu::visibility("default")]] caravan::mpi::MpiSession* caravan_mpi_session();
}
