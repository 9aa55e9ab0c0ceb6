#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/trace/trace.h"

namespace caravan {

/// The place of a rank's spans in a trace of several ranks.
struct TraceProcess {
  int rank = 0;
  std::string name{};           ///< "rank 3 (dp=1 pp=1)"
  int64_t origin_ns = 0;        ///< begin of the trace, on this host's steady clock
  int64_t origin_error_ns = 0;  ///< upper bound of its error
};

/// The spans as events of the trace event format of Chrome, which Perfetto reads too: JSON objects, one on a line, with
/// commas between them. The rank is the process; each row is a thread. A row whose spans overlap without being nested,
/// as operations in flight do, takes several threads.
std::string trace_events(const TraceProcess& process, const std::vector<TraceLog::Span>& spans);

/// Begin and end of the file around the events of all ranks: {"traceEvents": [..]}.
inline constexpr std::string_view kTraceBegin = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
inline constexpr std::string_view kTraceEnd = "\n]}\n";

}  // namespace caravan
