#include "caravan/data/chat/template_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/own_file.h"
#include "caravan/base/text.h"
#include "caravan/data/chat/template_channel.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

fs::path template_program() {
  fs::path program = own_file("caravan-template");
  if (!program.empty()) return program;
  std::error_code error;
  throw ResourceError(
      {"data", "caravan-template", "is missing: the program that runs chat templates",
       "looked for in lib/caravan beside and above " + fs::read_symlink("/proc/self/exe", error).string(),
       "install the whole of Caravan, or build the target caravan_template"});
}

[[noreturn]] void refuse_start(const fs::path& program, int error) {
  throw ResourceError(
      {"data", program.string(), fmt::format("cannot be started: {}", std::strerror(error)), "", "check its rights"});
}

}  // namespace

TemplateProcess::TemplateProcess() {
  const fs::path program = template_program();
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) refuse_start(program, errno);
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  // Neither handlers nor blocked signals of this process.
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string name = program.string();
  char* arguments[] = {name.data(), nullptr};
  const int error = posix_spawn(&id_, name.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (error == 0) return;
  close(socket_);
  refuse_start(program, error);
}

TemplateProcess::~TemplateProcess() {
  close(socket_);
  if (id_ <= 0) return;
  kill(id_, SIGKILL);
  while (waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool TemplateProcess::send(std::string_view frame) { return send_frame(socket_, frame); }

std::optional<std::string> TemplateProcess::receive() { return receive_frame(socket_); }

std::string TemplateProcess::take_end() {
  int status = 0;
  while (waitpid(id_, &status, 0) < 0) {
    if (errno != EINTR) break;
  }
  id_ = -1;
  switch (WIFSIGNALED(status) ? WTERMSIG(status) : 0) {
    case SIGPROF: return fmt::format("takes more than {} s of processor time", kTemplateSeconds);
    case SIGSEGV:
    case SIGBUS:
      return fmt::format("takes more than {} of stack: it nests too deeply, or a value contains itself",
                         format_bytes(static_cast<int64_t>(kTemplateStack)));
    case SIGFPE: return "divides by zero";
    case SIGKILL: return "was killed by the system, which may lack memory";
    default: return fmt::format("ends its process (wait status {})", status);
  }
}

}  // namespace caravan
