#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/trace/trace.h"

namespace caravan {

/// Where the spans of a rank go in a trace of several.
struct TraceProcess {
  int rank = 0;
  std::string name{};           ///< "rank 3 (dp=1 pp=1)"
  int64_t origin_ns = 0;        ///< of this host's steady clock: where the trace begins
  int64_t origin_error_ns = 0;  ///< at most
};

/// The spans as events of the trace event format of Chrome, which Perfetto reads too: JSON objects, one on a line, with
/// commas between them. The rank is the process; each row is a thread. A row whose spans overlap without one holding
/// the other, as operations in flight do, takes several threads.
std::string trace_events(const TraceProcess& process, const std::vector<TraceLog::Span>& spans);

/// The file around the events of all ranks: {"traceEvents": [..]}.
inline constexpr std::string_view kTraceBegin = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
inline constexpr std::string_view kTraceEnd = "\n]}\n";

}  // namespace caravan
