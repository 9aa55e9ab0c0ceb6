#pragma once

#include <cstdio>
#include <string_view>

namespace caravan::app {

/// Rank 0's output. Every rank makes the same text, and learns from Generator::run that the output is closed.
class Output {
 public:
  explicit Output(bool prints) : prints_(prints) {}
  /// Whether the text was printed, and all before it.
  bool put(std::string_view text) {
    if (prints_ && is_open_) {
      is_open_ = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    }
    return is_open_;
  }

 private:
  bool prints_;
  bool is_open_ = true;
};

}  // namespace caravan::app
