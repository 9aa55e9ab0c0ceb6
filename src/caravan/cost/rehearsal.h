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
#include "caravan/mesh/mesh.h"

namespace torch::nn {
class Module;
}

namespace caravan {

/// What one rank sends by one verb over one axis ("world": over all ranks), from one kind of event on.
struct SentCalls {
  std::string axis;
  Verb verb = Verb::barrier;
  std::string place;         ///< the first word of the event in which they begin: "backward"
  double calls = 0;          ///< in a step, the mean of steps that differ
  double bytes = 0;          ///< of the rank, as Traffic counts them
  double exposed_bytes = 0;  ///< of calls that the rank waits for before another event begins
};

/// Something that a rank computes in a step, as a trace names it.
struct RehearsedEvent {
  std::string what;     ///< "forward blocks.3 of micro-batch 1", "optimizer"
  MemoryBytes peak{};   ///< the most that there is while it runs
  MemoryBytes after{};  ///< at its end
};

/// A step of one rank with nothing in it: the real engine, optimizer and communication on meta tensors, in a world that
/// sends nothing (comm/record.h). What it allocates and sends is what the step allocates and sends.
struct Rehearsal {
  int rank = 0;
  /// Of RehearsedSteps::step, in order. What is between two of them belongs to the first.
  std::vector<RehearsedEvent> events{};
  MemoryBytes peak{};        ///< the most that there is at once, from the first tensor of the model on
  std::string peak_event{};  ///< and what the rank does then
  int64_t held_bytes = 0;    ///< the most that its process holds for tensors, see HeldBlocksScope
  MemoryBytes between_steps{};
  std::vector<SentCalls> sent{};                            ///< by axis, verb and place
  std::map<std::string, std::vector<int>> ranks_of_axis{};  ///< of the world, that this rank sends to over each axis

  double bytes_sent() const noexcept;
  double bytes_sent(const std::string& axis) const noexcept;
};

/// What is rehearsed, once it is made: see rehearse().
struct RehearsedSteps {
  /// `step` with one repetition fewer of something, of which the real step has more than `step`.
  struct Shorter {
    std::function<void()> run;
    double times;               ///< what `step` sends beyond it is added so many times
    bool is_run_twice = false;  ///< its first run has messages of its own: the second is counted
  };
  std::function<void()> step;  ///< the whole step of this rank, or some of what repeats in it
  std::vector<Shorter> shorter{};
  double num_steps = 1;  ///< that the real one does at once, the mean; what is sent is that of one
};

struct RehearsedWorld {
  std::vector<AxisSize> axes;  ///< of the mesh
  int rank = 0;
  int ranks_per_host = 0;  ///< that share memory, see RecordOptions
  /// Of a pipeline, what earlier rehearsals with the same have told: that of a first rank comes first.
  std::shared_ptr<RecordedNumbers> numbers = std::make_shared<RecordedNumbers>();
};

/// Takes the values from all tensors of a module of one's own, for a rehearsal: torch::nn::Module::to refuses the meta
/// device.
void to_meta(torch::nn::Module& module);

/// Rehearses two steps (the first allocates what optimizers and hooks keep) of what `make` makes on the mesh that it
/// gets: a model of ours or of one's own, an Engine with Options::device at::kMeta, an optimizer. Its tensors must have
/// no values: see to_meta.
///
///   rehearse({.axes = {{"dp", 1024}}}, [&](const Mesh& mesh) {
///     auto model = std::make_shared<Model>(config);
///     auto engine = std::make_shared<Engine>(*model, mesh, fsdp(*model, mesh), Engine::Options{.device = at::kMeta});
///     ...
///     return RehearsedSteps{[=] { /* forward, backward, optimizer */ }};
///   });
///
/// Sends nothing. Memory is counted if a Runtime of this process counts it (RuntimeOptions::count_memory), else 0.
/// Throws what `make` and the steps throw; what torch has no shapes for is an error of torch that names the operation.
Rehearsal rehearse(const RehearsedWorld& world, const std::function<RehearsedSteps(const Mesh&)>& make);

}  // namespace caravan
