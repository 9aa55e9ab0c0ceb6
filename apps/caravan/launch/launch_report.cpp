#include "apps/caravan/launch/launch_report.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string_view>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr size_t kTailLines = 15;
constexpr off_t kTailBytes = 131072;  // the lines before a long C++ stack, too
constexpr size_t kMostOthers = 8;

bool is_killed_by(const RankProcess& process, int number) {
  return WIFSIGNALED(process.wait_status) && WTERMSIG(process.wait_status) == number;
}

std::string how_it_ended(const RankProcess& process, const JobFacts& facts) {
  if (ending_of(process, facts) == Ending::out_of_memory) {
    return fmt::format(
        "was {}the host or its control group ran out of memory (the rank used {})",
        facts.is_estimated ? "killed by signal 9 (SIGKILL), probably because " : "killed by the kernel: ",
        format_bytes(process.peak_resident_bytes));
  }
  if (WIFSIGNALED(process.wait_status)) {
    const int number = WTERMSIG(process.wait_status);
    const char* name = sigabbrev_np(number);
    return fmt::format("was killed by signal {} (SIG{})", number, name != nullptr ? name : "?");
  }
  static const std::map<int, const char*> kClasses = {{1, "internal error"},
                                                      {2, "usage or recipe"},
                                                      {3, "data or checkpoint"},
                                                      {4, "lost peer or time-out"},
                                                      {5, "out of memory, disk space or another resource"},
                                                      {6, "loss or gradient not finite"},
                                                      {130, "interrupted"}};
  const int code = WEXITSTATUS(process.wait_status);
  const auto found = kClasses.find(code);
  return found == kClasses.end() || !facts.is_caravan
             ? fmt::format("ended with exit code {}", code)
             : fmt::format("ended with exit code {} ({})", code, found->second);
}

/// A line of the C++ stack that torch's exceptions print after their message. There are more of them than a tail has
/// lines. TORCH_SHOW_CPP_STACKTRACES=1 asks for them, as in PyTorch.
bool is_stack_frame(std::string_view line) {
  constexpr std::string_view kFrame = "frame #";
  const char* asked = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (asked != nullptr && std::string_view(asked) == "1") return false;
  return line.starts_with(kFrame) && line.size() > kFrame.size() &&
         std::isdigit(static_cast<unsigned char>(line[kFrame.size()])) != 0;
}

std::vector<std::string> tail_of(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return {};
  const off_t start = std::max<off_t>(0, file.st_size - kTailBytes);
  std::string text(static_cast<size_t>(file.st_size - start), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), start);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    if (const auto line = text.substr(from, to - from); !is_stack_frame(line)) lines.push_back(line);
    from = to + 1;
  }
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return lines;
}

/// Rank 0 has no log: what it wrote is on the terminal.
std::string end_of_log(const RankProcess& process) {
  if (process.log_fd < 0) return "";
  const std::string name = process.log_path.empty() ? "" : fmt::format(" ({})", process.log_path);
  const std::vector<std::string> lines = tail_of(process.log_fd);
  if (lines.empty()) return name.empty() ? "" : fmt::format("  its log is empty{}\n", name);
  std::string out = fmt::format("  the end of its log{}:\n", name);
  for (const std::string& line : lines) out += fmt::format("  | {}\n", line);
  return out;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string without_place(const std::string& error) {
  const size_t begin = error.find("\n  where: ");
  if (begin == std::string::npos) return error;
  const size_t end = error.find('\n', begin + 1);
  return error.substr(0, begin) + (end == std::string::npos ? "" : error.substr(end));
}

/// A line for each other rank, except those that only lost the culprit or have the same error.
std::string others(const RankProcess& culprit, const std::string& error,
                   const std::vector<const RankProcess*>& failures, const JobFacts& facts) {
  std::string out;
  size_t shown = 0, left_out = 0;
  for (const RankProcess* other : failures) {
    const std::string text = other->error();
    const bool follows =
        ending_of(*other, facts) == Ending::lost_peer && ending_of(culprit, facts) != Ending::lost_peer;
    if (other == &culprit || (!error.empty() && (follows || is_same_error(text, error)))) continue;
    if (shown == kMostOthers) {
      ++left_out;
      continue;
    }
    ++shown;
    out += fmt::format("caravan: rank {} {}{}\n", other->rank, how_it_ended(*other, facts),
                       text.empty() ? "" : ": " + first_line(text));
  }
  if (left_out > 0) out += fmt::format("caravan: and {} more ranks\n", left_out);
  return out;
}

}  // namespace

bool is_same_error(const std::string& one, const std::string& other) {
  return without_place(one) == without_place(other);
}

Ending ending_of(const RankProcess& process, const JobFacts& facts) noexcept {
  if (WIFSIGNALED(process.wait_status)) {
    const int number = WTERMSIG(process.wait_status);
    if (number == SIGKILL && process.killed) return Ending::killed;
    if (number == SIGKILL && facts.memory_ran_out) return Ending::out_of_memory;
    const bool asked = facts.stop_requested && (number == SIGTERM || number == SIGHUP || number == SIGINT);
    return asked ? Ending::stopped : Ending::failed;
  }
  switch (WEXITSTATUS(process.wait_status)) {
    case 0: return Ending::done;
    case 4: return Ending::lost_peer;
    case 130: return Ending::stopped;
    default: return Ending::failed;
  }
}

int job_code_of(const RankProcess& process, const JobFacts& facts) noexcept {
  if (ending_of(process, facts) == Ending::out_of_memory) return 5;
  if (is_killed_by(process, SIGPIPE)) return 128 + SIGPIPE;
  return WIFSIGNALED(process.wait_status) ? 4 : WEXITSTATUS(process.wait_status);
}

std::string report(const RankProcess& culprit, const std::vector<const RankProcess*>& failures, const JobFacts& facts) {
  if (is_killed_by(culprit, SIGPIPE)) return "";  // the reader of the output has closed it
  const std::string error = culprit.error();
  const std::string who = fmt::format("caravan: rank {} of {} ", culprit.rank, facts.num_ranks);
  std::string out;
  if (error.empty()) {
    out = who + how_it_ended(culprit, facts) + "\n" + end_of_log(culprit);
  } else {
    const bool is_only_its_own = std::ranges::none_of(
        failures, [&](const RankProcess* other) { return other != &culprit && is_same_error(other->error(), error); });
    out = (culprit.rank > 0 && is_only_its_own ? who + how_it_ended(culprit, facts) + ":\n" : "") + error + "\n";
  }
  if (ending_of(culprit, facts) == Ending::out_of_memory) {
    out += facts.is_caravan
               ? "  do: lower train.micro_batch if it is above 1, use a smaller model or context, or give each rank "
                 "more memory: start fewer ranks on this host\n"
               : "  do: start fewer ranks on this host, or let each use less memory\n";
  }
  return out + others(culprit, error, failures, facts);
}

}  // namespace caravan
