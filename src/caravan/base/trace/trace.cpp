#include "caravan/base/trace/trace.h"

#include <chrono>

namespace caravan {
namespace {

std::string name_of(std::string_view kind, std::string_view what) {
  std::string name(kind);
  if (!what.empty()) name.append(" ").append(what);
  return name;
}

}  // namespace

thread_local constinit TraceLog* TraceLog::innermost = nullptr;

int64_t TraceLog::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

size_t TraceLog::begin(std::string_view row, std::string name, Args args) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({std::string(row), std::move(name), std::move(args), now_ns()});
  return spans_.size() - 1;
}

void TraceLog::end(size_t number) noexcept {
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  if (spans_[number].end_ns == 0) spans_[number].end_ns = now;
}

std::vector<TraceLog::Span> TraceLog::spans() const {
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans = spans_;
  for (Span& span : spans) {
    if (span.end_ns == 0) span.end_ns = now;
  }
  return spans;
}

void TraceLog::start_lap(std::string_view row, std::string_view kind, std::string_view what, ArgList args) {
  stop_lap();
  lap_ = begin(row, name_of(kind, what), args);
}

void TraceLog::stop_lap() noexcept {
  if (lap_) end(*lap_);
  lap_.reset();
}

TraceScope::TraceScope(std::shared_ptr<TraceLog> trace) noexcept
    : trace_(std::move(trace)), outer_(std::exchange(TraceLog::innermost, trace_.get())) {}

TraceScope::~TraceScope() { TraceLog::innermost = outer_; }

void TraceSpan::begin(std::string_view row, std::string_view kind, std::string_view what, TraceLog::ArgList args) {
  trace_ = TraceLog::current()->shared_from_this();
  number_ = trace_->begin(row, name_of(kind, what), args);
}

void TraceSpan::end() noexcept {
  if (trace_ == nullptr) return;
  trace_->end(number_);
  trace_.reset();
}

}  // namespace caravan
