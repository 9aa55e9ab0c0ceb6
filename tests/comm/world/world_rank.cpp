#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/world.h"

/// One rank as a launcher starts it: finds its job in the environment, makes the world of the back-end it is told and
/// uses every kind of call on it. `world_rank BACKEND [die|die_at_first|die_early]`: the last rank ends in
/// mid-job, in every attempt or torchrun's first, or before there is a world.
int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "auto";
  const std::string fault = argc > 2 ? argv[2] : "";
  try {
    using namespace caravan;
    const RankInfo info = RankInfo::from_environment();
    const CommOptions options{.timeout = std::chrono::seconds(20)};
    const auto store = open_store(info, options);
    if (fault == "die_early" && info.rank + 1 == info.world_size) std::_Exit(77);
    const auto world = make_world(backend, info, store, options);
    const bool last = world->rank() + 1 == world->size();
    std::vector<float> data(100'000, static_cast<float>(world->rank() + 1));
    const Buffer buffer{data.data(), static_cast<int64_t>(data.size()), Dtype::fp32, {}};
    world->all_reduce(buffer, buffer, ReduceOp::sum, "gradient");
    const float expected = static_cast<float>(world->size() * (world->size() + 1)) / 2;
    for (const float value : data) {
      if (value != expected) return 1;
    }
    const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const bool is_first = attempt != nullptr && std::string(attempt) == "0";
    if (last && (fault == "die" || (fault == "die_at_first" && is_first))) std::_Exit(77);
    int64_t token = world->rank() == 0 ? 42 : 0;
    if (world->rank() > 0) world->recv({&token, 1, Dtype::int64, {}}, world->rank() - 1, "token");
    if (!last) world->send({&token, 1, Dtype::int64}, world->rank() + 1, "token");
    world->barrier("the end");
    std::printf("rank %d of %d by %s: token %lld\n", world->rank(), world->size(), world->backend().data(),
                static_cast<long long>(token));
    return 0;
  } catch (const caravan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
