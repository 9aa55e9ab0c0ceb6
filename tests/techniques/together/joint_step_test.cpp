/// Ranks that run out of batches: every step equals that of one process on the remaining batches.

#include <gmock/gmock.h>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "tests/engine/parameters.h"
#include "tests/techniques/together/technique.h"
#include "tests/techniques/together/user_net.h"

namespace caravan::testing::joint_step_test {
namespace {

using ::testing::HasSubstr;

struct Technique {
  const char* name;
  Setting choice{"data_parallel"};
  RowNeeds needs{};
};

class JointStep : public ::testing::TestWithParam<Technique> {};

INSTANTIATE_TEST_SUITE_P(Techniques, JointStep,
                         ::testing::Values(Technique{"ddp", technique_of("ddp")},
                                           Technique{"zero1", technique_of("zero1", {{"share", "off"}})},
                                           Technique{"zero2",
                                                     technique_of("zero2", {{"prefetch", 2}, {"share", "off"}})},
                                           Technique{"zero3", technique_of("zero3", {{"share", "off"}})},
                                           Technique{"zero3_shared", technique_of("zero3", {{"share", "on"}})},
                                           Technique{"hsdp", technique_of("hsdp", {{"shard", 2}, {"share", "off"}})}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Also ranks that never have a batch, and coordinate 0 among those that run out.
TEST_P(JointStep, MatchesOneProcessOnTheExistingBatches) {
  GetParam().needs.check();
  for (const std::vector<int>& batches :
       {std::vector{3, 1}, {0, 2}, {1, 3, 2}, {0, 3, 1}, {1, 4, 2, 3}, {2, 0, 3, 0}}) {
    if (GetParam().choice.name() == "hsdp" && batches.size() != 4) continue;
    for (const int micros : {1, 2}) {
      for (const Buffers buffers : {Buffers::broadcast, Buffers::average}) {
        UserRun run{.ranks = static_cast<int>(batches.size()),
                    .choice = GetParam().choice,
                    .micros = micros,
                    .steps = *std::max_element(batches.begin(), batches.end()),
                    .buffers = buffers};
        run.has_batch = [&](int step, int rank) { return step < batches[static_cast<size_t>(rank)]; };
        SCOPED_TRACE(run.to_string() + fmt::format(", {} batches", fmt::join(batches, " ")));
        expect_equal(on_ranks(run), in_one_process(run), 1e-10);
      }
    }
  }
}

/// A step of all ranks, as begin_step has it, and one without rank 1, whose number of micro-batches is new.
TEST(JointStep, MixesWithOrdinarySteps) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<UserNet>();
    ModuleAdapter model(net, UserNet::units(net), mesh);
    Fsdp engine(model, mesh, {.share = Share::off});
    const auto backward = [&](int times) {
      for (int i = 0; i < times; ++i) model(at::ones({2, 2, 5, 5}), {}).sum().backward();
    };
    engine.begin_step();
    EXPECT_EQ(engine.num_joined(), 2);
    backward(1);
    engine.finish_step();
    ASSERT_TRUE(engine.begin_join_step(mesh.rank() == 0, mesh.rank() == 0 ? 3 : 1));
    EXPECT_EQ(engine.num_joined(), 1);
    if (mesh.rank() == 0) backward(3);
    engine.finish_step();
    ASSERT_NE(engine.recorded(3), nullptr);
    EXPECT_EQ(std::ranges::count_if(*engine.recorded(3), [](const Action& a) { return a.is_event(); }), 3 * 3 * 2);
  });
}

TEST(JointStep, RefusesWhatWouldHang) {
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<UserNet>();
    ModuleAdapter model(net, UserNet::units(net), mesh);
    Ddp engine(model, mesh);
    EXPECT_THAT(message_of<UsageError>([&] { engine.begin_join_step(mesh["tp"].coord() == 0); }),
                HasSubstr("have it, and some do not"));
    EXPECT_THAT(message_of<UsageError>([&] { engine.begin_join_step(true, 1 + mesh["dp"].coord()); }),
                HasSubstr("from 1 to 2 micro-batches"));
    ASSERT_TRUE(engine.begin_join_step(mesh["dp"].coord() == 0));
    if (mesh["dp"].coord() == 1) {
      EXPECT_THAT(message_of<UsageError>([&] {
                    model(at::ones({2, 2, 5, 5}), {});
                  }),
                  HasSubstr("a unit runs on a rank that announced no batch"));
    } else {
      model(at::ones({2, 2, 5, 5}), {}).sum().backward();
    }
    engine.finish_step();
    EXPECT_FALSE(engine.begin_join_step(false));
    EXPECT_THAT(message_of<UsageError>([&] { engine.finish_step(); }), HasSubstr("no step has begun"));
  });
}

TEST(JointStep, CostsOneSmallCollective) {
  on_mesh({{"dp", 4}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<UserNet>();
    ModuleAdapter model(net, UserNet::units(net), mesh);
    Ddp engine(model, mesh);
    const int64_t before = mesh.bytes_sent();
    engine.begin_join_step(false);
    EXPECT_EQ(mesh.bytes_sent() - before, wire_bytes(Verb::all_reduce, mesh.rank(), 4, 24 + 16 * 4, 0, 0));
  });
}

}  // namespace
}  // namespace caravan::testing::joint_step_test
