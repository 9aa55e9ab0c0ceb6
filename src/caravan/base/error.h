#pragma once

#include <stdexcept>
#include <string>

namespace caravan {

/// The parts of a message: `[op] subject: fact. where: .. do: ..`. Empty parts are left out.
struct ErrorText {
  std::string op;       ///< the operation that refuses: "redistribute", "recipe"
  std::string subject;  ///< what it refuses: a tensor, a key, a file
  std::string fact;     ///< what is wrong, with numbers
  std::string where;    ///< rank, coordinate, layout, file and line
  std::string action;   ///< one thing to do
};

/// Base of everything the library throws. One class per class of error; the command maps each to its exit code.
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

/// A program that is ill typed: placements that do not fit (see redistribute/infer.h).
class LayoutError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Data, a tokenizer or a checkpoint that is damaged, missing or not what it should be.
class DataError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 3; }
};

/// A peer that is lost, late, or that issued another call than this rank.
class CommError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 4; }
};

/// Out of memory, disk, descriptors, or a folder that cannot be written.
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

/// The user asked to stop; what was to be saved is saved.
class Interrupted : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 130; }
};

}  // namespace caravan
