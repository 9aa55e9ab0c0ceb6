#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

namespace caravan {

/// A program run by a test. A mark in the environment finds it and every process that it starts.
class Child {
 public:
  struct Options {
    std::vector<std::string> environment = {};
    std::string input = {};  ///< a file for stdin; empty: /dev/null
    bool terminal = false;   ///< stdin, stdout and stderr are its own terminal, and it leads the session
    bool ignores_hang_up = false;
    double patience_s = 20;  ///< how long `wait` and `expect_soon` wait
  };

  explicit Child(std::vector<std::string> command);
  Child(std::vector<std::string> command, const Options& options);
  ~Child();  ///< kills what is left
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Types on the terminal.
  void type(const std::string& keys);

  /// Waits until it ends (at most patience_s, then the test fails). Returns the exit code, or 1000 + the signal.
  int wait();
  /// What it and its children have written so far.
  std::string out();
  std::string err();
  /// Waits until the output contains `text` `times` times; fails the test after patience_s.
  void expect_soon(const std::string& text, int times = 1);

  /// The living processes with the mark of this child.
  std::vector<pid_t> living() const;
  /// Waits until none is left; false after `seconds`.
  bool all_gone(double seconds) const;

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  int out_ = -1;
  int err_ = -1;
  int terminal_ = -1;
  std::string terminal_text_;
  std::string mark_;
  std::chrono::milliseconds patience_;
};

}  // namespace caravan
