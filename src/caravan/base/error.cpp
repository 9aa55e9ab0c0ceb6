#include "caravan/base/error.h"

#include <utility>

namespace caravan {
namespace {

std::string message(const ErrorText& text) {
  std::string out = "[" + text.op + "] ";
  if (!text.subject.empty()) out += text.subject + ": ";
  out += text.fact;
  if (!text.where.empty()) out += "\n  where: " + text.where;
  if (!text.action.empty()) out += "\n  do: " + text.action;
  return out;
}

}  // namespace

Error::Error(ErrorText text) : std::runtime_error(message(text)), text_(std::move(text)) {}

}  // namespace caravan
