/// A rank for the tests of Session: program NAME=VALUE.. with the options axes=dp:0,tp:2, backend, seed, timeout_s and
/// threads; 1:NAME=VALUE is for rank 1 alone. Prints what it found, or the error, as `rank R: ..`.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/max.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/session/session.h"

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

void set(SessionOptions& options, const std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
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

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  SessionOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word[1] != ':') set(options, word);
    if (word[1] == ':' && rank != nullptr && word.substr(0, 1) == rank) set(options, word.substr(2));
  }
  try {
    Session session(options);
    std::string axes;
    for (const MeshAxis& axis : session.mesh().axes()) {
      axes += fmt::format(" {}={}/{}", axis.name(), session[axis.name()].coord(), axis.size());
    }
    fmt::print("rank {} of {}{}: {}, seed {}, random {}, threads {} {}{}\n", session.rank(), session.size(), axes,
               session.device().str(), session.seed(), difference(session) < 1e-6 ? "equal" : "different",
               session.threads() == at::get_num_threads() ? "set" : "not set", session.threads(),
               session.is_main() ? ", main" : "");
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
