#include "caravan/session/sharded_sampler.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/comm/calls/same.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_sampler(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"sampler", subject, fact, "", action});
}

}  // namespace

struct ShardedSampler::State {
  int64_t rows = 0;
  MeshAxis axis;
  SamplerOptions options;
  int64_t epoch = 0;
  int64_t taken = 0;           ///< rows of the epoch
  int64_t given = 0;           ///< to loaders, which may be ahead
  std::deque<int64_t> ends{};  ///< of the batches that were given and not taken, where they end
  int64_t batch_size = 0;      ///< that the ranks have compared; 0: not in this loop
  bool is_counted = true;      ///< batches are taken from over()
  std::optional<RandomPermutation> order{};

  int64_t size() const { return axis.size(); }
  uint64_t index(int64_t place) const {
    return order ? (*order)(static_cast<uint64_t>(place)) : static_cast<uint64_t>(place);
  }
  void shuffle() {
    if (options.shuffle) order.emplace(options.seed, "sampler", epoch, static_cast<uint64_t>(rows));
  }
};

ShardedSampler::ShardedSampler(int64_t rows, const MeshAxis& axis, const SamplerOptions& options)
    : state_(std::make_shared<State>(State{.rows = rows, .axis = axis, .options = options})) {
  check_same_on_all_ranks(axis.comm(), "sampler",
                          {{"rows", fmt::format("{}", rows)},
                           {"seed", fmt::format("{}", options.seed)},
                           {"shuffle", options.shuffle ? "true" : "false"},
                           {"drop_last", options.drop_last ? "true" : "false"}});
  if (rows < axis.size()) {
    refuse_sampler("rows", fmt::format("{} are fewer than the {} ranks of {}", rows, axis.size(), axis.name()),
                   "use more rows, or fewer ranks");
  }
  state_->shuffle();
}

int64_t ShardedSampler::epoch() const noexcept { return state_->epoch; }
int64_t ShardedSampler::position() const noexcept { return state_->taken; }

void ShardedSampler::reset(std::optional<size_t> new_size) {
  State& state = *state_;
  if (new_size && *new_size != static_cast<size_t>(state.rows)) {
    refuse_sampler("rows", fmt::format("the data set has {} instead of {}", *new_size, state.rows),
                   "make another sampler for it");
  }
  state.given = state.taken;
  state.ends.clear();
  state.batch_size = 0;
  state.is_counted = false;
}

std::optional<std::vector<size_t>> ShardedSampler::next(size_t batch_size) {
  State& state = *state_;
  const auto batch = static_cast<int64_t>(batch_size);
  if (batch != state.batch_size) {
    check_same_on_all_ranks(state.axis.comm(), "sampler", {{"batch size", fmt::format("{}", batch)}});
    if (batch < 1) refuse_sampler("batch size", "is 0", "use 1 or more");
    state.batch_size = batch;
  }
  const int64_t ranks = state.size(), left = state.rows - state.given;
  if (left == 0 || (state.options.drop_last && left / ranks < batch)) return std::nullopt;
  int64_t count = left / ranks < batch ? left : batch * ranks;
  // A small rest goes with the last whole batch. By rows over all ranks, so that it does not depend on their number; of
  // fewer rows than ranks, some rank would get none.
  const int64_t rest = left - count;
  if (!state.options.drop_last && (2 * rest < batch * ranks || rest < ranks)) count = left;
  const int64_t rank = state.axis.coord(), share = count / ranks, more = count % ranks;
  const int64_t first = state.given + rank * share + std::min(rank, more);
  std::vector<size_t> rows;
  for (int64_t i = 0; i < share + (rank < more ? 1 : 0); ++i) rows.push_back(state.index(first + i));
  state.given += count;
  state.ends.push_back(state.given);
  return rows;
}

void ShardedSampler::take() {
  State& state = *state_;
  state.is_counted = true;
  if (state.ends.empty()) {
    refuse_sampler("over()", "the loader has another sampler", "give this one to make_data_loader");
  }
  state.taken = state.ends.front();
  state.ends.pop_front();
}

void ShardedSampler::end_epoch() {
  State& state = *state_;
  state.is_counted = true;
  ++state.epoch;
  state.taken = state.given = 0;
  state.shuffle();
}

std::string ShardedSampler::save() const {
  const State& state = *state_;
  if (!state.is_counted) {
    refuse_sampler("position", "is not known: batches were fetched without over()",
                   "write `for (auto& batch : sampler.over(*loader))`");
  }
  return fmt::format("rows {} seed {} shuffle {} epoch {} position {}", state.rows, state.options.seed,
                     state.options.shuffle ? 1 : 0, state.epoch, state.taken);
}

void ShardedSampler::load(const std::string& text) {
  State& state = *state_;
  std::istringstream words(text);
  std::string name;
  int64_t rows = -1, epoch = -1, position = -1;
  uint64_t seed = 0;
  int shuffle = -1;
  words >> name >> rows >> name >> seed >> name >> shuffle >> name >> epoch >> name >> position;
  if (!words || position < 0 || position > rows || epoch < 0) {
    throw DataError({"sampler", "state", "is not that of a sampler: '" + text.substr(0, 80) + "'", "",
                     "attach the sampler under the name that it was saved under"});
  }
  const auto check = [](const char* what, auto saved, auto own) {
    if (saved == own) return;
    throw DataError({"sampler", what, fmt::format("was {} when it was saved, and is {}", saved, own), "",
                     "go on with the same data set, seed and order, or leave the sampler out of attach()"});
  };
  check("rows", rows, state.rows);
  check("seed", seed, state.options.seed);
  check("shuffle", shuffle != 0, state.options.shuffle);
  const int64_t left = rows - position;
  if (left > 0 && left < state.size() && !state.options.drop_last) {
    throw DataError(
        {"sampler", "position",
         fmt::format("{} of {} rows of epoch {} are left, fewer than {} ranks", left, rows, epoch, state.size()), "",
         "go on with fewer ranks, or set drop_last"});
  }
  state.epoch = epoch;
  state.taken = state.given = position;
  state.ends.clear();
  state.shuffle();
}

void ShardedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("state", c10::IValue(save()));
}

void ShardedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue text;
  archive.read("state", text);
  load(text.toStringRef());
}

}  // namespace caravan
