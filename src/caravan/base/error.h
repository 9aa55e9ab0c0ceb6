#pragma once

#include <stdexcept>
#include <string>

namespace caravan {

/// The parts of a message: `[op] subject: fact. where: .. do: ..`. Empty parts are omitted.
struct ErrorText {
  std::string op{};       ///< the operation that failed: "redistribute", "recipe"
  std::string subject{};  ///< what it failed on: a tensor, a key, a file
  std::string fact{};     ///< what is wrong, with numbers
  std::string where{};    ///< rank, coordinate, layout, file and line
  std::string action{};   ///< one thing to do
};

/// Base of everything the library throws. Each kind of error has its class and its exit code.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorText text);
  const ErrorText& text() const noexcept { return text_; }
  virtual int exit_code() const noexcept = 0;

 private:
  ErrorText text_;
};

/// A broken invariant of the library itself.
class InternalError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 1; }
};

/// A call, a command line or a recipe that cannot work.
class UsageError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 2; }
};

/// Sizes that do not fit each other or the mesh.
class ShapeError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Placements that do not fit together: the program is ill typed (see redistribute/infer.h).
class LayoutError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Data, a tokenizer or a checkpoint that is damaged, missing or of the wrong kind.
class DataError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 3; }
};

/// A peer that died, timed out, or issued a different call than this rank.
class CommError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 4; }
};

/// Out of memory, disk space or file descriptors, or a folder that is not writable.
class ResourceError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 5; }
};

/// A loss or a gradient that is not finite.
class NumericsError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 6; }
};

/// The user asked to stop. Everything that had to be saved has been saved.
class Interrupted : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 130; }
};

}  // namespace caravan
