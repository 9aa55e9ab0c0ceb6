// bench comm and doctor, run as a user runs them. The tests check that figures are consistent; none asserts a time.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <sstream>

#include "apps/caravan/bench/doctor_report.h"
#include "caravan/base/system/processor.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/cost/hardware.h"
#include "caravan/memory/bandwidths.h"
#include "caravan/nn/product/product_choice.h"
#include "tests/command/command.h"

namespace caravan::bench_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BenchTest : public CommandTest {
 protected:
  /// The JSON objects that a command prints, one per line.
  std::vector<nlohmann::ordered_json> lines(const Words& arguments) const {
    const Result result = caravan(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    std::vector<nlohmann::ordered_json> all;
    std::istringstream text(result.out);
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::ordered_json::parse(line));
    return all;
  }

  void expect_refused(const Words& arguments, const std::vector<std::string>& words) const {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Result result = caravan(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
  }

  /// Microseconds since the start of the test: no reported time can be longer.
  double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

constexpr double kLeast_us = 0.001;  // a read of the first cache

TEST_F(BenchTest, PrintsOneObjectPerLineWithKeysInOrder) {
  const auto all = lines({"bench", "comm", "--json", "--op", "all_reduce,barrier", "--bytes", "8,1KiB", "--copy"});
  ASSERT_EQ(all.size(), 3U);
  const std::vector<std::string> first{"op",   "dtype",     "backend", "bytes",  "ranks",
                                       "copy", "median_us", "p95_us",  "ping_ns"};
  for (const auto& line : all) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.push_back(key);
    ASSERT_GE(keys.size(), first.size());
    keys.resize(first.size());
    EXPECT_EQ(keys, first);
    EXPECT_EQ(line["backend"], "shm");
    EXPECT_EQ(line["ranks"], 2);
    EXPECT_EQ(line["copy"], true);
    EXPECT_GE(line["min_us"], kLeast_us);
    EXPECT_GE(line["median_us"], line["min_us"]);
    EXPECT_GE(line["p95_us"], line["median_us"]);
    EXPECT_GE(line["max_us"], line["p95_us"]);
    EXPECT_GE(line["samples"], 5);
    const double num_calls = line["samples"].get<double>() * line["calls_per_sample"].get<double>();
    EXPECT_LE(line["min_us"].get<double>() * num_calls, elapsed_us());
  }
  EXPECT_EQ(all[0]["op"], "all_reduce");
  EXPECT_EQ(all[0]["bytes"], 8);
  EXPECT_EQ(all[1]["bytes"], 1024);
  EXPECT_NEAR(all[1]["algorithm_gb_s"].get<double>(), 1.024 / all[1]["median_us"].get<double>(), 1e-9);
  EXPECT_EQ(all[1]["bus_gb_s"], all[1]["algorithm_gb_s"]) << "2(n-1)/n is 1";
  const double memory_gb_s = std::max(all[1]["copy_gb_s"].get<double>(), all[1]["add_gb_s"].get<double>());
  EXPECT_NEAR(all[1]["limit_us"].get<double>(), 4 * 1.024 / memory_gb_s, 1e-9) << "each half is read and written twice";
  EXPECT_NEAR(all[1]["limit_share"].get<double>(), all[1]["limit_us"].get<double>() / all[1]["median_us"].get<double>(),
              1e-9);
  EXPECT_EQ(all[2]["op"], "barrier");
  EXPECT_EQ(all[2]["limit_share"], nullptr);
}

TEST_F(BenchTest, EveryVerbOverThreadsAndGloo) {
  const auto threads = lines({"bench", "comm", "--json", "--ranks", "3", "--op", "all", "--dtype", "bf16", "--bytes",
                              "2000", "--backend", "thread"});
  EXPECT_EQ(threads.size(), 9U);
  for (const auto& line : threads) EXPECT_EQ(line["backend"], "thread");
  const auto gloo = lines({"bench", "comm", "--json", "--backend", "gloo", "--op", "reduce_scatter,send", "--bytes",
                           "4KiB", "--dtype", "fp16,int64"});
  ASSERT_EQ(gloo.size(), 4U);
  EXPECT_EQ(gloo[3]["op"], "send");
  EXPECT_EQ(gloo[3]["dtype"], "int64");
}

TEST_F(BenchTest, PrintsATable) {
  const Result result = caravan({"bench", "comm", "--bytes", "4KiB", "--in-place"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::StartsWith("2 ranks over shm, buffers from Communicator::allocate, in place\n"));
  EXPECT_THAT(result.out, HasSubstr("\nall_reduce     fp32       4.0 KiB"));
}

TEST_F(BenchTest, RefusesAndNamesTheNearest) {
  const Words bench{"bench", "comm"};
  const auto with = [&](const Words& more) {
    Words words = bench;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(with({"--op", "allreduce"}),
                 {"--op: 'allreduce' is not one of all_reduce", "nearest is 'all_reduce'"});
  expect_refused(with({"--dtype", "fp32,bf61"}), {"--dtype: 'bf61'", "nearest is 'bf16'"});
  expect_refused(with({"--bytes", "4KiB,64kib"}), {"--bytes: '64kib' is not a size", "write 64KiB"});
  for (const char* size : {"0", "-4", "many", "99999999999GiB"}) {
    expect_refused(with({"--bytes", size}),
                   {std::string("--bytes: '") + size + "' is not a size", "positive integers"});
  }
  expect_refused(with({"--bytes", "10"}),
                 {"10 bytes is not a multiple of the element size of fp32 (4 bytes)", "use 12"});
  expect_refused(with({"--ranks", "1"}), {"--ranks: 1 is too few"});
  expect_refused(with({"--in-place", "--op", "all_to_all"}), {"all_to_all cannot work in place"});
  expect_refused(with({"--backend", "glo"}), {"'glo' is not one of auto, thread, shm, gloo", "use gloo"});
  expect_refused(with({"--bytes", "10TiB"}), {"'10TiB' is not a size", "KiB, MiB or GiB"});
  expect_refused(with({"--tune", "--out", path("nothere/table.json")}), {"its folder does not exist"});
  expect_refused(with({"--tune", "--out", folder().string()}), {"is a folder"});
  expect_refused(with({"--josn"}), {"--josn", "nearest is '--json'"});
}

TEST_F(BenchTest, TuneWritesATableThatCanBeReadAgain) {
  const std::string table = path("table.json");
  const auto all = lines({"bench", "comm", "--tune", "--backend", "thread", "--ranks", "3", "--op",
                          "all_reduce,broadcast", "--bytes", "4KiB,1KiB", "--json", "--out", table});
  std::set<std::string> algorithms;
  std::map<std::pair<Verb, int64_t>, std::vector<std::pair<algorithms::Choice, double>>> times;
  for (const auto& line : all) {
    EXPECT_THAT(line["op"], ::testing::AnyOf("all_reduce", "broadcast"));
    EXPECT_THAT(line["bytes"], ::testing::AnyOf(1024, 4096));
    EXPECT_GE(line["median_us"], kLeast_us);
    algorithms.insert(line["algorithm"]);
    const Verb verb = line["op"] == "broadcast" ? Verb::broadcast : Verb::all_reduce;
    const auto all_of_verb = algorithms::algorithms_for(verb);
    const auto algorithm =
        std::ranges::find_if(all_of_verb, [&](auto one) { return algorithms::name(one) == line["algorithm"]; });
    ASSERT_NE(algorithm, all_of_verb.end()) << line;
    times[{verb, line["bytes"]}].emplace_back(algorithms::Choice{*algorithm, line["segment_bytes"]}, line["median_us"]);
  }
  EXPECT_GE(algorithms.size(), 3U);
  const auto read = algorithms::SelectionTable::load(table);
  ASSERT_EQ(times.size(), 4U);
  for (const auto& [place, measured] : times) {
    // The fastest, or the direct one, which comes first and is kept unless another one is 5 % faster.
    ASSERT_EQ(measured[0].first.algorithm, algorithms::Algorithm::direct);
    auto best = measured[0];
    for (const auto& one : measured) {
      const bool is_direct = best.first.algorithm == algorithms::Algorithm::direct;
      if (one.second < (is_direct ? 0.95 : 1) * best.second) best = one;
    }
    EXPECT_EQ(read.choose("thread", place.first, 3, place.second), best.first) << place.second << " bytes";
  }
  EXPECT_EQ(read, algorithms::SelectionTable::from_json(read.to_json(), "again"));
  EXPECT_THAT(text_of(table), HasSubstr("thread"));
  expect_refused({"bench", "comm", "--tune", "--copy"}, {"--copy: has no effect with --tune"});
  expect_refused({"bench", "comm", "--tune", "--op", "barrier"}, {"barrier has only one algorithm"});
  expect_refused({"bench", "comm", "--out", table}, {"--out: has no effect without --tune"});
}

class DoctorTest : public BenchTest {};

TEST_F(DoctorTest, EveryLinkOfEveryBackend) {
  const auto all = lines({"doctor", "--ranks", "3", "--json"});
  ASSERT_EQ(all.size(), 1U);
  const auto& found = all[0];
  EXPECT_EQ(found["ok"], true);
  ASSERT_EQ(found["hosts"].size(), 1U);
  EXPECT_THAT(found["hosts"][0]["ranks"].get<std::vector<int>>(), ElementsAre(0, 1, 2));
  for (const char* rate : {"copy_gb_s", "add_gb_s"}) {
    EXPECT_GT(found["hosts"][0][rate], 0.001) << rate;
    EXPECT_LT(found["hosts"][0][rate], 20'000) << rate;
  }
  EXPECT_EQ(found["tiers"]["disks"].size(), 1U);
  ASSERT_EQ(found["backends"].size(), 2U);
  EXPECT_EQ(found["backends"][0]["name"], "shm");
  EXPECT_EQ(found["backends"][1]["name"], "gloo");
  std::map<std::string, double> costs_us;  // of 8 bytes and 4 MiB over each link
  for (const auto& backend : found["backends"]) {
    EXPECT_EQ(backend["links"].size(), 6U);
    for (const auto& link : backend["links"]) {
      EXPECT_NE(link["from"], link["to"]);
      EXPECT_EQ(link["right"], true);
      EXPECT_GE(link["latency_us"], kLeast_us);
      EXPECT_LT(link["bandwidth_gb_s"], 20'000);
      costs_us[backend["name"]] +=
          link["latency_us"].get<double>() + (4 << 20) / link["bandwidth_gb_s"].get<double>() / 1e3;
    }
  }
  EXPECT_LE(costs_us["shm"] + costs_us["gloo"], elapsed_us());
  EXPECT_EQ(found["use"], costs_us["shm"] <= costs_us["gloo"] ? "shm" : "gloo");
}

TEST_F(DoctorTest, RecommendsABackEnd) {
  const Result result = caravan({"doctor"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"cores ", "NUMA nodes", "memory rate", "tiers: ", "disk ", "limits ", "memfd_create works", "network       lo",
        "back-end shm: works", "back-end gloo: works", "use comm.backend = \""}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST_F(DoctorTest, OneRankHasNoLinks) {
  const Result result = caravan({"doctor", "--ranks", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("one rank: there is nothing to communicate"));
}

TEST_F(DoctorTest, DisksAreMeasuredAndKept) {
  std::filesystem::create_directory(path("one"));
  std::filesystem::create_directory(path("two"));
  const auto first =
      lines({"doctor", "--ranks", "1", "--json", "--disk", path("one"), "--disk", "/dev/shm"})[0]["tiers"];
  ASSERT_EQ(first["disks"].size(), 2U);
  EXPECT_EQ(first["file"], path("cache/tiers.toml"));
  EXPECT_EQ(first["disks"][0]["folder"], path("one"));
  EXPECT_THAT(first["disks"][1]["notes"].dump(), HasSubstr("a file system in memory"));
  EXPECT_TRUE(std::filesystem::is_empty(path("one"))) << "what was measured is removed";
  const Result second = caravan({"doctor", "--ranks", "1", "--disk", path("two")});
  EXPECT_THAT(second.out, HasSubstr("disk " + path("two") + ": "));
  EXPECT_THAT(second.out, HasSubstr("kept in " + path("cache/tiers.toml")));
  ::setenv("CARAVAN_CACHE", path("cache").c_str(), 1);
  const TierBandwidths kept = read_tier_bandwidths();
  ::unsetenv("CARAVAN_CACHE");
  EXPECT_TRUE(kept.is_copy_measured);
  ASSERT_EQ(kept.disks.size(), 3U) << "those of both runs";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(kept.disks[i].read_bytes_per_second, first["disks"][i]["read_bytes_per_second"].get<double>(), 1);
    EXPECT_NEAR(kept.disks[i].write_bytes_per_second, first["disks"][i]["write_bytes_per_second"].get<double>(), 1);
  }
  EXPECT_EQ(kept.disks[2].folder, path("two"));
  for (const std::string& folder : {path("no/such"), path("none")}) {
    expect_refused({"doctor", "--disk", path("one"), "--disk", folder}, {folder + " is not a folder"});
    EXPECT_FALSE(std::filesystem::exists(folder)) << "nothing is made";
  }
  expect_refused({"doctor", "--tune", "--disk", "."}, {" excludes --"});
}

TEST_F(DoctorTest, TuneKeepsAChoiceForThisClassOfProcessor) {
  const Result result = caravan({"doctor", "--tune"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"processor class: ", "fp32 forward", "fp32 dx", "fp32 dw", "bf16 products", "bf16 attention"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  const auto kept = read_tuned_products(path("cache"), processor_class(), {},
                                        {ProductLibrary::tiles, ProductLibrary::mkl, ProductLibrary::blas});
  ASSERT_TRUE(kept.has_value());
  EXPECT_THAT(result.out, HasSubstr("products: " + to_text(*kept) + "\n"));
  expect_refused({"doctor", "--tune", "--ranks", "2"}, {" excludes --"});
  const Result job = run({"env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=23458", program(), "doctor", "--tune"});
  EXPECT_EQ(job.code, 2);
  EXPECT_THAT(job.err, HasSubstr("times one process, and 2 were started"));
}

TEST_F(DoctorTest, HardwareIsMeasuredAndWritten) {
  const std::string file = path("mine.toml");
  std::filesystem::create_directory(path("disk"));
  const Result result = caravan({"doctor", "--hardware", file, "--ranks", "2", "--disk", path("disk")});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part : {": 2 devices, threads of each ", "memory rate", "launch ", "attention: ", "link ",
                           "fp32: ", "bf16: ", "typical error", "by the formula", "disk "}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_THAT(result.out, HasSubstr("wrote " + file + "\n"));
  const Hardware measured = read_hardware(file);
  EXPECT_THAT(measured.source, HasSubstr("measured 2"));
  EXPECT_EQ(measured.num_devices(), 2);
  ASSERT_EQ(measured.hosts.size(), 1U);
  EXPECT_GT(measured.hosts[0].disk_read_bytes_per_second, 0);
  EXPECT_GT(measured.hosts[0].copy_bytes_per_second, 0);
  const HardwareDevice& device = measured.device_of(1);
  EXPECT_EQ(device.alias, "cpu");
  EXPECT_EQ(device.time_error, 0.15);
  for (const char* dtype : {"fp32", "bf16"}) {
    ASSERT_NE(device.product(dtype), nullptr);
    EXPECT_GT(device.product(dtype)->flops, 1e6);
  }
  EXPECT_GT(device.memory_bytes, device.reserved_bytes);
  EXPECT_GT(device.launch_seconds, 0);
  ASSERT_EQ(measured.levels.size(), 1U);
  EXPECT_EQ(measured.levels[0].name, "host");
  EXPECT_GE(measured.levels[0].latency_seconds, kLeast_us * 1e-6);
  EXPECT_GT(measured.levels[0].bytes_per_second, 1e6);
  // A file of this kind is replaced.
  EXPECT_EQ(caravan({"doctor", "--hardware", file, "--ranks", "1"}).code, 0);
  EXPECT_EQ(read_hardware(file).num_devices(), 1);
  EXPECT_EQ(read_hardware(file).hosts[0].disk_read_bytes_per_second, 0) << "without --disk";
}

TEST_F(DoctorTest, HardwareIsNotWrittenOverOtherFiles) {
  const std::string other = path("recipe.toml");
  std::ofstream(other) << "[train]\nsteps = 5\n";
  expect_refused({"doctor", "--hardware", other},
                 {"exists and does not describe hardware: no such key", "name another"});
  EXPECT_EQ(std::filesystem::file_size(other), 18U);
  expect_refused({"doctor", "--hardware", path("no/such.toml")}, {"--hardware", "its folder does not exist"});
  expect_refused({"doctor", "--hardware", path("")}, {"--hardware", "is a folder"});
  expect_refused({"doctor", "--hardware", ""}, {"--hardware"});
  expect_refused({"doctor", "--hardware", path("mine.toml"), "--json"}, {" excludes --"});
  expect_refused({"doctor", "--hardware", path("mine.toml"), "--tune"}, {" excludes --"});
  const Result job =
      run({"env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
           "MASTER_PORT=23459", program(), "doctor", "--hardware", path("mine.toml")});
  EXPECT_EQ(job.code, 2);
  EXPECT_THAT(job.err, HasSubstr("measures one host, and 1 of 2 ranks are on others"));
}

TEST_F(DoctorTest, ARankThatDoesNotJoinIsNamed) {
  const Result result = run({"env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                             "MASTER_ADDR=127.0.0.1", "MASTER_PORT=23457", program(), "doctor"});
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1: did not join within 30 s"));
}

TEST(Diagnosis, ALinkThatDoesNotWorkIsNamedAndNotChosen) {
  app::Diagnosis diagnosis{.num_ranks = 2};
  diagnosis.backends = {{.name = "shm", .links = {{0, 1, 0.5, 40, true}, {1, 0, 0.5, 40, false}}},
                        {.name = "gloo", .links = {{0, 1, 50, 2, true}, {1, 0, 60, 1, true}}}};
  EXPECT_EQ(diagnosis.backend(), "gloo");
  EXPECT_FALSE(diagnosis.all_links_work());
  EXPECT_THAT(to_text(diagnosis), ::testing::AllOf(HasSubstr("back-end shm: DOES NOT WORK"), HasSubstr("WRONG DATA"),
                                                   HasSubstr("shm does not work"), HasSubstr("60.00 us")));
  diagnosis.backends[0].links[1].is_right = true;
  EXPECT_EQ(diagnosis.backend(), "shm");
  EXPECT_TRUE(diagnosis.all_links_work());
  for (app::BackendFinding& finding : diagnosis.backends) finding.errors = {"rank 1: no answer"};
  EXPECT_EQ(diagnosis.backend(), "");
  EXPECT_THAT(to_json(diagnosis), ::testing::AllOf(HasSubstr("\"ok\":false"), HasSubstr("rank 1: no answer")));
}

}  // namespace
}  // namespace caravan::bench_test
