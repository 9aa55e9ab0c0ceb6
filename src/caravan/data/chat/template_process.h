#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace caravan {

/// A running program caravan-template, and the socket to it: see template_channel.h. It ends with this object or with
/// this process; if this process is killed, after the current chat.
class TemplateProcess {
 public:
  /// Throws ResourceError if the program is missing or cannot be started.
  TemplateProcess();
  ~TemplateProcess();
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  /// Returns false or nothing if the program has ended.
  bool send(std::string_view frame);
  std::optional<std::string> receive();
  /// After the program has ended: the budget that its template exceeded.
  std::string take_end();

 private:
  pid_t id_ = -1;
  int socket_ = -1;
};

}  // namespace caravan
