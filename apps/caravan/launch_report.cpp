#include "apps/caravan/launch_report.h"

#include <algorithm>
#include <cstring>
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
constexpr off_t kTailBytes = 16384;

std::string happened(const RankProcess& process) {
  if (WIFSIGNALED(process.wait_status)) {
    const int number = WTERMSIG(process.wait_status);
    const char* name = sigabbrev_np(number);
    const char* hint = number == SIGKILL ? ", as kill -9 and the kernel short of memory do" : "";
    return fmt::format("was killed by signal {} (SIG{}){}", number, name != nullptr ? name : "?", hint);
  }
  static const std::map<int, const char*> kClasses = {{1, "internal error"},         {2, "bad usage or recipe"},
                                                      {3, "bad data or checkpoint"}, {4, "a peer lost or timed out"},
                                                      {5, "out of memory or disk"},  {6, "numbers went bad"},
                                                      {130, "interrupted"}};
  const int code = WEXITSTATUS(process.wait_status);
  const auto found = kClasses.find(code);
  return found == kClasses.end() ? fmt::format("ended with exit code {}", code)
                                 : fmt::format("ended with exit code {} ({})", code, found->second);
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
    lines.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return lines;
}

std::string log_of(const RankProcess& process) {
  if (process.log_fd < 0) return "  its output stands above\n";
  const std::string name = process.log_path.empty() ? "" : fmt::format(" ({})", process.log_path);
  const std::vector<std::string> lines = tail_of(process.log_fd);
  if (lines.empty()) return fmt::format("  it wrote nothing{}\n", name);
  std::string out = fmt::format("  the end of its log{}:\n", name);
  for (const std::string& line : lines) out += fmt::format("  | {}\n", line);
  return out;
}

}  // namespace

Ending ending_of(const RankProcess& process, bool stop_requested) noexcept {
  const int status = process.wait_status;
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    if (process.killed && number == SIGKILL) return Ending::ended;
    const bool asked = stop_requested && (number == SIGTERM || number == SIGHUP);
    return asked ? Ending::stopped : Ending::failed;
  }
  switch (WEXITSTATUS(status)) {
    case 0: return Ending::done;
    case 4: return Ending::echo;
    case 130: return Ending::stopped;
    default: return Ending::failed;
  }
}

int job_code_of(const RankProcess& process) noexcept {
  return WIFSIGNALED(process.wait_status) ? 4 : WEXITSTATUS(process.wait_status);
}

std::string report(const RankProcess& culprit, const std::vector<const RankProcess*>& in_order, int num_ranks) {
  std::string out = fmt::format("caravan: rank {} of {} {}\n", culprit.rank, num_ranks, happened(culprit));
  out += log_of(culprit);
  for (const RankProcess* other : in_order) {
    if (other != &culprit) out += fmt::format("  rank {} {}\n", other->rank, happened(*other));
  }
  return out;
}

}  // namespace caravan
