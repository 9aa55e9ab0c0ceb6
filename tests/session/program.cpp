/// A rank for the tests of Session: program NAME=VALUE.. with the options axes=dp:0,tp:2, backend, seed, timeout_s,
/// threads, plans=UNITS, steps=MOST and saves=RUN; 1:NAME=VALUE is for rank 1 alone. Prints what it found, or the
/// error, as `rank R: ..`.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/module/adapter.h"
#include "caravan/session/parallelize.h"
#include "caravan/session/plan_module.h"
#include "caravan/session/run_program.h"
#include "caravan/session/session.h"
#include "caravan/techniques/pipeline/pipeline.h"

namespace {

using namespace caravan;

std::vector<AxisSize> axes_of(const std::string& text) {
  std::vector<AxisSize> axes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t colon = word.find(':');
    axes.push_back({word.substr(0, colon), std::atoi(word.c_str() + colon + 1)});
  }
  return axes;
}

std::string thrown;  ///< the kind of exception that ends this rank; "": none
int planned = 0;     ///< units of a net that is planned; 0: none
int steps = 0;       ///< at most so many, until somebody asks to stop
std::string saves;   ///< a folder in which every seventh of them is saved; "": none

[[noreturn]] void fail() {
  if (thrown == "torch") at::ones({2}).view({3});
  if (thrown == "number") throw 7;
  if (thrown == "memory") throw std::bad_alloc();
  throw std::runtime_error("the third\nline of three");
}

void set(SessionOptions& options, const std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
  if (name == "throws") thrown = value;
  if (name == "plans") planned = std::atoi(value.c_str());
  if (name == "steps") steps = std::atoi(value.c_str());
  if (name == "saves") saves = value;
  for (const auto& [degree, size] : {std::pair("dp", &options.dp), {"pp", &options.pp}, {"tp", &options.tp}}) {
    if (name == degree) *size = std::atoi(value.c_str());
  }
  if (name == "axes") options.axes = axes_of(value);
  if (name == "backend") options.backend = value;
  if (name == "seed") options.seed = std::stoull(value);
  if (name == "timeout_s") options.timeout_s = std::stod(value);
  if (name == "threads") options.threads = std::stoi(value);
}

/// The largest difference of a random tensor between the ranks.
double difference(Session& session) {
  const at::Tensor mine = at::rand({4});
  at::Tensor sum = mine.clone();
  all_reduce_async(session.world(), sum, sum, ReduceOp::sum).wait();
  return (sum / session.size() - mine).abs().max().item<double>();
}

/// The output of two layers, each a stage of the pipeline that is the whole mesh, summed over the ranks.
double sum_of_stages(Session& session) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  const at::NoGradGuard no_grad;
  for (at::Tensor& weight : net->parameters()) weight.fill_(1);
  const auto unit = [&](const char* name, size_t i) {
    const auto layer = net->ptr<torch::nn::LinearImpl>(i);
    return ModuleAdapter::Unit{name, {layer}, [layer](Tensors in) -> Tensors {
                                 const at::Tensor out = layer->forward(in[0]);
                                 return {out.size(1) == 1 ? out.sum() : out};
                               }};
  };
  ModuleAdapter model(net.ptr(), {unit("first", 0), unit("second", 1)}, session.mesh());
  Strategy strategy = whole_model(model, session.mesh());
  add_pipeline(strategy, session.mesh(), {});
  Engine engine(model, session.mesh(), strategy);
  StageRunner runner(engine);
  const at::AutoGradMode with_gradients(true);
  at::Tensor sum = at::tensor({runner.run_step(2, [](int m) {
    return MicroBatch{at::full({1, 2}, m + 1.0F), at::zeros({1})};
  })});
  all_reduce_async(session.world(), sum, sum, ReduceOp::sum).wait();
  return sum.item<double>();
}

/// Counts steps, which are saved when due; the last rank is told to stop in step 20.
void count_and_save(Session& session) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3));
  ParallelModel model(net, session.mesh(), {});
  Progress now = model.load(saves);
  fmt::print("rank {} from step {}\n", session.rank(), now.step);
  for (bool stop = false; now.step < steps && !stop;) {
    if (++now.step == 20 && session.rank() == session.size() - 1) std::raise(SIGTERM);
    const DueSave due = model.save_if_due(saves, now, {.steps = 7, .last_step = steps});
    if (due.saved) fmt::print("rank {} saved {}\n", session.rank(), due.saved->folder.filename().string());
    stop = due.stop;
  }
}

/// The plan of a net of so many layers for the hardware that the session has, or for two cards.
void print_plan(Session& session, int units) {
  torch::nn::Sequential net;
  for (int i = 0; i < units; ++i) net->push_back(torch::nn::Linear(8, 8));
  const StepData sample{at::zeros({8, 8}), at::zeros({8, 8}),
                        [](const at::Tensor& out, const at::Tensor& y) { return (out - y).square().sum() / 64; }};
  const Hardware cards = preset_hardware({.device = "rtx-4090", .per_host = 2});
  fmt::print("{}", plan(net, session, sample, {.hardware = cards, .seconds = 0.2, .most_rows = 2}).to_string());
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  SessionOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word[1] != ':') set(options, word);
    if (word[1] == ':' && rank != nullptr && word.substr(0, 1) == rank) set(options, word.substr(2));
  }
  return run_program([&] {
    Session session(options);
    if (!thrown.empty()) fail();
    if (planned > 0) return print_plan(session, planned);
    if (!saves.empty()) return count_and_save(session);
    int step = 0;
    while (step < steps && !session.should_stop()) {
      if (++step == 20 && session.rank() == session.size() - 1) std::raise(SIGTERM);
    }
    if (steps > 0) return fmt::print("rank {} stopped after {} steps\n", session.rank(), step);
    if (session.mesh().has("pp") && session.mesh()["pp"].size() == session.size()) {
      fmt::print("rank {} of {} stages: {}\n", session.rank(), session.size(), sum_of_stages(session));
      return;
    }
    std::string axes;
    for (const MeshAxis& axis : session.mesh().axes()) {
      axes += fmt::format(" {}={}/{}", axis.name(), session[axis.name()].coord(), axis.size());
    }
    fmt::print("rank {} of {}{}: {}, seed {}, random {}, threads {} {}{}\n", session.rank(), session.size(), axes,
               session.device().str(), session.seed(), difference(session) < 1e-6 ? "equal" : "different",
               session.threads() == at::get_num_threads() ? "set" : "not set", session.threads(),
               session.is_main() ? ", main" : "");
  });
}
