#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/record.h"
#include "caravan/comm/types.h"
#include "caravan/cost/memory_bytes.h"
#include "caravan/cost/step_timeline.h"
#include "caravan/engine/chunk_report.h"
#include "caravan/mesh/mesh.h"

namespace torch::nn {
class Module;
}

namespace caravan {

/// What one rank sends by one verb over one axis ("world": over all ranks), from the start of one kind of event.
struct SentCalls {
  std::string axis;
  Verb verb = Verb::barrier;
  std::string place;         ///< first word of the event in which the calls begin: "backward"
  double calls = 0;          ///< calls in a step, the mean if steps differ
  double bytes = 0;          ///< bytes of this rank, as Traffic counts them
  double exposed_bytes = 0;  ///< bytes of calls that the rank waits for before another event begins
};

/// Something that a rank computes in a step, as a trace names it.
struct RehearsedEvent {
  std::string what;     ///< "forward blocks.3 of micro-batch 1", "optimizer"
  MemoryBytes peak{};   ///< peak while it runs
  MemoryBytes after{};  ///< at its end
};

/// One step of one rank, run with the real engine, optimizer and communication on meta tensors, in a world that sends
/// nothing (comm/record.h). It allocates and sends exactly what the step allocates and sends.
struct Rehearsal {
  int rank = 0;
  /// The rank whose device computes it: where devices differ, the slowest of those that do the same. -1: its own.
  int slowest_rank = -1;
  int64_t room_bytes = 0;  ///< the least that a device of those has; 0: unknown
  /// Events of RehearsedSteps::step, in order. Whatever happens between two of them counts for the first.
  std::vector<RehearsedEvent> events{};
  MemoryBytes peak{};           ///< peak since the first tensor of the model
  std::string peak_event{};     ///< what the rank does at the peak
  int64_t held_bytes = 0;       ///< the most that the process holds for tensors, see HeldBlocksScope
  MemoryBytes between_steps{};  ///< memory between steps
  MemoryBytes host{};           ///< peak in host memory beyond the device
  int64_t disk_bytes = 0;       ///< peak on disk
  /// Bytes that a step moves between the tiers.
  struct Moved {
    double to_host = 0, from_host = 0, to_disk = 0, from_disk = 0;
    void add(const MemoryCounter::Moved& before, const MemoryCounter::Moved& after, double times);
  } moved{};
  ChunkReport chunks{};
  /// RehearsedSteps::step, and each of RehearsedSteps::shorter with how many times its difference to it is added.
  StepTimeline timeline{};
  struct Shorter {
    StepTimeline timeline;
    double times;
  };
  std::vector<Shorter> shorter{};
  double num_steps = 1;                                     ///< that all of them stand for
  std::vector<SentCalls> sent{};                            ///< by axis, verb and place
  std::map<std::string, std::vector<int>> ranks_of_axis{};  ///< ranks of the world, by axis

  double bytes_sent() const noexcept;
  double bytes_sent(const std::string& axis) const noexcept;
};

/// What rehearse() runs; see there.
struct RehearsedSteps {
  /// `step` with one repetition fewer of something that the real step repeats more often than `step`.
  struct Shorter {
    std::function<void()> run;
    double times;               ///< how many times the difference in traffic to `step` is added
    bool is_run_twice = false;  ///< the first run has extra messages: the second is counted
  };
  std::function<void()> step;  ///< the whole step of this rank, or a part of its repetitions
  std::vector<Shorter> shorter{};
  double num_steps = 1;  ///< number of real steps that `step` stands for, the mean; the traffic is that of one
  ChunkReport chunks{};
};

struct RehearsedWorld {
  std::vector<AxisSize> axes;  ///< axes of the mesh
  int rank = 0;
  int ranks_per_host = 0;  ///< ranks that share memory, see RecordOptions
  /// In a pipeline, what earlier rehearsals with the same object recorded: rehearse a first rank first.
  std::shared_ptr<RecordedNumbers> numbers = std::make_shared<RecordedNumbers>();
};

/// Removes the values of all tensors of a user's module for a rehearsal: torch::nn::Module::to refuses the meta device.
void to_meta(torch::nn::Module& module);

/// Rehearses two steps (the first allocates the state of optimizers and hooks) of what `make` creates on the given
/// mesh: a model of this library or of the user, an Engine with Options::device at::kMeta, an optimizer. Its tensors
/// must have no values: see to_meta.
///
///   rehearse({.axes = {{"dp", 1024}}}, [&](const Mesh& mesh) {
///     auto model = std::make_shared<Model>(config);
///     auto engine = std::make_shared<Engine>(*model, mesh, fsdp(*model, mesh), Engine::Options{.device = at::kMeta});
///     ...
///     return RehearsedSteps{[=] { /* forward, backward, optimizer */ }};
///   });
///
/// Sends nothing. Memory is counted if a Runtime of this process counts it (RuntimeOptions::count_memory), else 0.
/// Throws what `make` and the steps throw; for an operation without a meta kernel, torch's error that names it.
Rehearsal rehearse(const RehearsedWorld& world, const std::function<RehearsedSteps(const Mesh&)>& make);

}  // namespace caravan
