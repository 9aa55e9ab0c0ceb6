#include "caravan/session/run_program.h"

#include <exception>
#include <new>
#include <string>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/error_report.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {
namespace {

/// "rank 1 of 2: ", or nothing for a rank that is alone or that cannot be known.
std::string own_rank() {
  try {
    const RankInfo info = RankInfo::from_environment();
    return info.world_size > 1 ? fmt::format("rank {} of {}: ", info.rank, info.world_size) : "";
  } catch (const std::exception&) {
    return "";
  }
}

int report(const std::string& text, int code) {
  const std::string rank = own_rank();
  report_error(text.find(rank.substr(0, rank.find(':'))) == std::string::npos ? rank + text : text);
  return code;
}

}  // namespace

int run_program(const std::function<void()>& program) {
  try {
    program();
    return 0;
  } catch (const Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const c10::OutOfMemoryError& error) {
    return report(std::string("[program] out of memory: ") + error.what_without_backtrace(), 5);
  } catch (const c10::Error& error) {  // its what() has a backtrace
    return report(std::string("[torch] ") + error.what_without_backtrace(), 1);
  } catch (const std::bad_alloc&) {
    return report("[program] out of memory", 5);
  } catch (const std::exception& error) {
    return report(std::string("[program] ") + error.what(), 1);
  } catch (...) {
    return report("[program] an exception that is not derived from std::exception", 1);
  }
}

}  // namespace caravan
