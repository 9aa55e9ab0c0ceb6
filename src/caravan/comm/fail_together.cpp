#include "caravan/comm/fail_together.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/agree.h"

namespace caravan {
namespace {

std::string packed(int exit_code, const ErrorText& text) {
  const nlohmann::json fields{exit_code, text.op, text.subject, text.fact, text.where, text.action};
  // A path need not be UTF-8.
  return fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// What a peer needs to throw the same error.
std::string packed(const std::exception_ptr& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return packed(known.exit_code(), known.text());
  } catch (const std::bad_alloc&) {
    return packed(5, {.op = "memory", .fact = "out of memory"});
  } catch (const std::exception& other) {
    const std::string text = other.what();
    return packed(1, {.op = "caravan", .fact = text.substr(0, text.find('\n'))});
  } catch (...) {
    return packed(1, {.op = "caravan", .fact = "unknown exception"});
  }
}

[[noreturn]] void throw_packed(const std::string& error, int rank) {
  const auto fields = nlohmann::json::parse(error);
  ErrorText text{.op = fields[1], .subject = fields[2], .fact = fields[3], .where = fields[4], .action = fields[5]};
  text.where = fmt::format("rank {}{}{}", rank, text.where.empty() ? "" : ": ", text.where);
  switch (fields[0].get<int>()) {
    case 2: throw UsageError(std::move(text));
    case 3: throw DataError(std::move(text));
    case 4: throw CommError(std::move(text));
    case 5: throw ResourceError(std::move(text));
    case 6: throw NumericsError(std::move(text));
    case 130: throw Interrupted(std::move(text));
    default: throw InternalError(std::move(text));
  }
}

}  // namespace

void fail_together(Communicator& comm, const std::function<void()>& work, const Call& call) {
  std::exception_ptr error;
  try {
    if (work) work();
  } catch (...) {
    error = std::current_exception();
  }
  int64_t has_failed = error == nullptr ? 0 : 1;
  take_maxima(comm, {&has_failed, 1}, call);
  if (has_failed == 0) return;
  const std::vector<std::string> errors = gather_texts(comm, packed(error), call);
  const auto first = std::ranges::find_if(errors, [](const std::string& text) { return !text.empty(); });
  const auto rank = static_cast<int>(first - errors.begin());
  if (rank == comm.rank()) std::rethrow_exception(error);
  throw_packed(*first, rank);
}

}  // namespace caravan
