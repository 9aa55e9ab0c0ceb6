#include "caravan/train/folder/run_trace.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/trace/trace_events.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/train/dataset/prepare.h"

namespace caravan {
namespace {

/// "rank 3 (dp=1 pp=1)".
std::string name_of(const Mesh& mesh) {
  std::string coords;
  for (const MeshAxis& axis : mesh.axes()) {
    coords += fmt::format("{}{}={}", coords.empty() ? "" : " ", axis.name(), axis.coord());
  }
  return fmt::format("rank {} ({})", mesh.rank(), coords);
}

/// Checked before a run that would end without its trace.
void check_writable(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw UsageError({"train", "--trace", file.string() + " is a folder", "", "name a file, such as trace.json in it"});
  }
  const OutputFile probe(name_aside(file), "trace");
}

void send_text(Communicator& comm, std::string text) {
  auto length = static_cast<int64_t>(text.size());
  comm.send({&length, 1, Dtype::int64}, 0, "trace");
  comm.send({text.data(), length, Dtype::uint8}, 0, "trace");
}

std::string recv_text(Communicator& comm, int from) {
  int64_t length = 0;
  comm.recv({&length, 1, Dtype::int64}, from, "trace");
  std::string text(static_cast<size_t>(length), '\0');
  comm.recv({text.data(), length, Dtype::uint8}, from, "trace");
  return text;
}

}  // namespace

RunTrace::RunTrace(std::filesystem::path file, std::optional<StepRange> steps, const Mesh& mesh)
    : file_(std::move(file)), asked_(steps), mesh_(mesh) {
  on_rank_0(
      mesh.world(), [&] { check_writable(file_); }, "trace");
}

void RunTrace::choose_steps(int64_t done, int64_t last) {
  steps_ = asked_.value_or(StepRange{std::min(done + 3, last), std::min(done + 5, last)});
  if (steps_.first > done && steps_.last <= last) return;
  throw UsageError(
      {"train", asked_ ? "--trace-steps" : "--trace",
       asked_ ? fmt::format("steps {}-{} are not all part of this run", steps_.first, steps_.last) : "has no step", "",
       done < last ? fmt::format("choose steps from {} to {}", done + 1, last)
                   : "the run is complete: leave --trace out"});
}

void RunTrace::begin(int64_t done, int64_t steps_at_once) {
  if (done >= steps_.last || done + steps_at_once < steps_.first) return;
  if (trace_ == nullptr) {
    clock_ = clock_offset(mesh_.world(), host_name(), TraceLog::now_ns);
    trace_ = std::make_shared<TraceLog>();
  }
  scope_.emplace(trace_);
  const bool is_one = steps_at_once == 1;
  step_span_.emplace(TraceLog::kCompute, is_one ? "step" : "steps from", std::to_string(done + 1));
}

void RunTrace::end(int64_t done) {
  if (!scope_) return;
  step_span_.reset();
  scope_.reset();
  if (done < steps_.first) trace_.reset();  // a drain came before the first of them
  is_over_ = done >= steps_.last;
}

std::string RunTrace::own_events() const {
  const TraceProcess process{
      .rank = mesh_.rank(), .name = name_of(mesh_), .origin_ns = clock_.zero_ns, .origin_error_ns = clock_.error_ns};
  return trace_events(process, trace_->spans());
}

bool RunTrace::write() {
  if (trace_ == nullptr) return false;
  const std::string own = own_events();
  trace_.reset();
  Communicator& world = mesh_.world();
  std::exception_ptr failure;
  if (world.rank() == 0) {
    failure = write_all(own);
  } else {
    send_text(world, own);
  }
  throw_on_all_ranks(world, failure, "trace");
  return true;
}

/// Receives the events of the other ranks, even if they cannot be written.
std::exception_ptr RunTrace::write_all(const std::string& own) const {
  std::exception_ptr failure;
  const auto attempt = [&](const std::function<void()>& work) {
    try {
      if (failure == nullptr) work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::optional<OutputFile> output;
  attempt([&] {
    output.emplace(name_aside(file_), "trace");
    output->append(kTraceBegin);
    output->append(own);
  });
  for (int rank = 1; rank < mesh_.world().size(); ++rank) {
    const std::string events = recv_text(mesh_.world(), rank);
    attempt([&] { output->append(",\n" + events); });
  }
  attempt([&] {
    output->append(kTraceEnd);
    output->finish_as(file_);
  });
  return failure;
}

}  // namespace caravan
