// Hardware in files and of presets: what is written is read, and what is wrong is said with file, key and a way out.
#include "caravan/cost/hardware.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/cost/quantity.h"
#include "tests/data/support.h"

namespace caravan::testing::hardware_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two kinds of hosts, one of a preset.
const char* const kUnequal = R"(
name = "two kinds"
restart = "10min"
[device.big]
name = "Big 96GB"
units = 100
products.fp32 = {reached = "20TFLOP/s"}
products.bf16 = {peak = "400TFLOP/s", reached = "300TFLOP/s", tile = [128, 256], ramp_k = 96, sustained = 0.9}
products.fp8 = {peak = "800TFLOP/s", unaligned = 0.25}
memory = "96GiB"
memory_rate = "2.5TB/s"
price_per_hour = 2.25
mtbf = "50000h"
time_error = 0.2
[[host]]
count = 2
device = "big"
devices = 8
memory = "2TB"
storage_rate = "8Gbit/s"
copy_rate = 120e9
disk_read = "6GB/s"
disk_write = "3 GB/s"
[[host]]
device = "a100-40"
devices = 4
[[level]]
name = "pair"
devices = 2
rate = "600GB/s"
latency = "2us"
[[level]]
name = "node"
devices = 8
rate = "300GB/s"
fraction = 0.75
reduce_speedup = 1.5
call = "20us"
ramp = "4MB"
includes_inner = true
[[level]]
name = "cluster"
rate = "200Gb/s"
oversubscription = 2
congestion = 0.03
)";

std::string page() {
  std::ostringstream text;
  text << std::ifstream(CARAVAN_SOURCE_DIR "/docs/hardware.md").rdbuf();
  return text.str();
}

class HardwareFile : public ::testing::Test {
 protected:
  Hardware read(const std::string& text) const {
    std::ofstream(folder_ / "mine.toml") << text;
    return read_hardware(folder_ / "mine.toml");
  }
  std::string error_of(const std::string& text) const {
    try {
      read(text);
    } catch (const DataError& error) {
      EXPECT_THAT(error.text().where + error.text().subject, HasSubstr((folder_ / "mine.toml").string()));
      EXPECT_NE(error.text().action, "");
      return error.what();
    }
    return "no error";
  }
  /// kUnequal with a line in place of another.
  static std::string with(const std::string& before, const std::string& after) {
    std::string text = kUnequal;
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    return text.replace(at, before.size(), after);
  }
  static std::string without(const std::string& line) { return with(line + "\n", ""); }

  TemporaryFolder folder_;
};

TEST_F(HardwareFile, SaysWhatItSaysAndTheRestHasDefaults) {
  const Hardware read = this->read(kUnequal);
  EXPECT_EQ(read.name, "two kinds");
  EXPECT_EQ(read.source, (folder_ / "mine.toml").string());
  EXPECT_EQ(read.num_devices(), 20);
  EXPECT_FALSE(read.is_uniform());
  ASSERT_EQ(read.devices.size(), 2U);
  const HardwareDevice& big = read.devices[0];
  EXPECT_EQ(big.name, "Big 96GB");
  EXPECT_EQ(big.alias, "big");
  EXPECT_EQ(big.units, 100);
  ASSERT_EQ(big.products.size(), 3U) << "in the order of the file";
  EXPECT_EQ(big.products[0], (ProductRate{.dtype = "fp32", .peak_flops = 0, .flops = 20e12}));
  EXPECT_EQ(big.products[1], (ProductRate{"bf16", 400e12, 300e12, 128, 256, 96, 0.9}));
  EXPECT_EQ(big.products[2], (ProductRate{.dtype = "fp8", .peak_flops = 800e12, .flops = 640e12, .unaligned = 0.25}))
      << "0.8 of the peak";
  EXPECT_EQ(big.product("bf16"), &big.products[1]);
  EXPECT_EQ(big.product("fp16"), nullptr);
  EXPECT_EQ(big.attention_fraction, 0.5);
  EXPECT_EQ(big.memory_bytes, int64_t{96} << 30);
  EXPECT_EQ(big.reserved_bytes, int64_t{1} << 30);
  EXPECT_EQ(big.memory_bytes_per_second, 2.5e12);
  EXPECT_EQ(big.launch_seconds, 5e-6);
  EXPECT_EQ(big.host_bytes_per_second, 25e9);
  EXPECT_EQ(big.price_per_hour, 2.25);
  EXPECT_EQ(big.mtbf_seconds, 50000 * 3600.0);
  EXPECT_EQ(big.time_error, 0.2);
  EXPECT_EQ(read.restart_seconds, 600);
  EXPECT_EQ(read.devices[1], *preset_device("a100-40")) << "described by its preset";
  EXPECT_EQ(read.hosts[0], (HostKind{2, "big", 8, 2'000'000'000'000, 120e9, 6e9, 3e9, 1e9}));
  EXPECT_EQ(read.hosts[1], (HostKind{.count = 1, .device = "a100-40", .devices = 4}));
  EXPECT_EQ(read.levels[0], (LinkLevel{"pair", 2, 600e9, 2e-6, 1, 1, 1}));
  EXPECT_EQ(read.levels[1], (LinkLevel{"node", 8, 300e9, 5e-6, 0.75, 1.5, 1, 20e-6, 4e6, 0, true}));
  EXPECT_EQ(read.levels[2], (LinkLevel{"cluster", 20, 25e9, 5e-6, 1, 1, 2, 0, 0, 0.03}))
      << "the last level has all devices";
}

TEST_F(HardwareFile, IsReadAsItWasWritten) {
  Hardware unequal = read(kUnequal);
  EXPECT_EQ(read(to_toml(unequal)), unequal);
  // Names and numbers that need care.
  unequal.name = "a \"b\"\\ \t c";
  unequal.devices[0].name = unequal.hosts[0].device = "GPU (rev 2), 40%";
  unequal.devices[0].alias = "";
  unequal.devices[0].products[0] = {"fp32", 0, 123456789012345.678, 17, 3, 0};
  unequal.devices[0].memory_bytes = (int64_t{96} << 30) + 1;
  unequal.devices[0].reserved_bytes = 0;
  unequal.devices[0].launch_seconds = 1.0 / 3e6;
  unequal.devices[0].products[0].kernel_bytes_per_second = 13e9;
  unequal.devices[0].products[0].kernel_seconds = 15e-6;
  unequal.devices[0].products[0].operand_bytes_per_second = 11e9;
  unequal.devices[0].products[0].attention = {.flops = 1e18, .row_seconds = 3.1e-8};
  unequal.devices[0].products[0].attention_backward = {.flops = 1.3e11};
  unequal.devices[0].memory_bytes_per_second = 0.1 + 0.2;
  unequal.levels[0].bytes_per_second = 1e300;
  unequal.levels[0].latency_seconds = 5e-324;
  unequal.levels[1].fraction = 1.0 / 3;
  unequal.devices[0].is_processor = true;
  EXPECT_EQ(read(to_toml(unequal)), unequal);
  EXPECT_THAT(to_toml(unequal), AllOf(HasSubstr("[device.\"GPU (rev 2), 40%\"]"), HasSubstr("tile = [17, 3]")));
}

TEST_F(HardwareFile, BytesOfADataSheetAreRounded) {
  EXPECT_EQ(read(with("\"96GiB\"", "\"79.63GiB\"")).devices[0].memory_bytes, std::llround(79.63 * (1 << 30)));
}

TEST_F(HardwareFile, OfOneDeviceNeedsLittle) {
  const Hardware one = read("[device.mine]\nproducts.fp16.peak = 50e12\nmemory = 8e9\nmemory_rate = 4e11\n[[host]]\n");
  EXPECT_EQ(one.name, "mine") << "that of the file";
  EXPECT_EQ(one.devices[0].name, "mine");
  EXPECT_EQ(one.devices[0].alias, "");
  EXPECT_EQ(one.hosts[0].device, "mine") << "the only device";
  EXPECT_EQ(one.level_of({0}).devices, 1);
  EXPECT_EQ(read(to_toml(one)), one);
}

TEST_F(HardwareFile, ADeviceMayBeLikeAPreset) {
  const Hardware mine = read(R"([device.mine]
like = "a100-80"
price_per_hour = 1.5
products.bf16 = {reached = "250TFLOP/s"}
[[host]]
)");
  HardwareDevice wanted = *preset_device("a100-80");
  wanted.name = "mine";
  wanted.alias = "";
  wanted.price_per_hour = 1.5;
  std::ranges::find(wanted.products, "bf16", &ProductRate::dtype)->flops = 250e12;
  EXPECT_EQ(mine.devices, std::vector<HardwareDevice>{wanted});
}

TEST_F(HardwareFile, ExamplesOfThePageAreRead) {
  const std::string text = page();
  std::vector<int64_t> devices;
  const std::string fence = "```toml\n";
  for (size_t at = text.find(fence); at != std::string::npos; at = text.find(fence, at + 1)) {
    const size_t begin = at + fence.size();
    devices.push_back(read(text.substr(begin, text.find("```", begin) - begin)).num_devices());
  }
  EXPECT_THAT(devices, ElementsAre(32, 20));
}

TEST_F(HardwareFile, UnitsAreReadExactly) {
  EXPECT_EQ(parse_quantity("80GiB", Quantity::bytes), 80.0 * (1 << 30));
  EXPECT_EQ(parse_quantity("1.5 kB", Quantity::bytes), 1500);
  EXPECT_EQ(parse_quantity("200Gb/s", Quantity::bytes_per_second), 25e9);
  EXPECT_EQ(parse_quantity("2GiB/s", Quantity::bytes_per_second), 2.0 * (1 << 30));
  for (const char* text : {"200Gbit/s", "200 Gbit/s", "200Gbits/s", "200Gbps", "200 Gb/s", "25GBps", "0.2Tbps"}) {
    EXPECT_EQ(parse_quantity(text, Quantity::bytes_per_second), 25e9) << text;
  }
  EXPECT_EQ(parse_quantity("8Gbit", Quantity::bytes), std::nullopt) << "a rate alone is counted in bits";
  EXPECT_EQ(parse_quantity("10min", Quantity::seconds), 600);
  EXPECT_EQ(parse_quantity("1.5h", Quantity::seconds), 5400);
  EXPECT_EQ(parse_quantity("2d", Quantity::seconds), 2 * 86400);
  EXPECT_EQ(parse_quantity("5us", Quantity::seconds), 5e-6);
  EXPECT_EQ(parse_quantity("271.2TFLOP/s", Quantity::flops_per_second), 271.2e12);
  for (const char* wrong : {"", "80", "GiB", "80gib", "-1GiB", "1e3GiB", "1.2.3GiB", "80GiB/s", "inf B", "8 GiB x"}) {
    EXPECT_EQ(parse_quantity(wrong, Quantity::bytes), std::nullopt) << wrong;
  }
  EXPECT_EQ(format_quantity(80.0 * (1 << 30), Quantity::bytes), "80GiB");
  EXPECT_EQ(format_quantity(141e9, Quantity::bytes), "141GB");
  EXPECT_EQ(format_quantity(5e-6, Quantity::seconds), "5us");
  EXPECT_EQ(format_quantity(1835.1e9, Quantity::bytes_per_second), "1.8351TB/s");
  EXPECT_EQ(format_quantity(0, Quantity::seconds), "0s");
  EXPECT_EQ(format_quantity(50'700 * 3600.0, Quantity::seconds), "50700h");
  EXPECT_EQ(format_quantity(0, Quantity::bytes_per_second), "0B/s");
  EXPECT_EQ(format_quantity(300e9, Quantity::bytes_per_second), "300GB/s");
}

TEST_F(HardwareFile, WrongKeysAndValuesAreSaid) {
  const std::string file = (folder_ / "mine.toml").string();
  EXPECT_THAT(error_of("name = "), AllOf(HasSubstr(file + ":1"), HasSubstr("correct the TOML of this line")));
  EXPECT_THAT(
      error_of(with("units = 100", "unit = 100")),
      AllOf(HasSubstr(file + ":6"), HasSubstr("device.big, unit: no such key"), HasSubstr("the nearest is units")));
  EXPECT_THAT(error_of(with("[device.big]", "[devices.big]")), HasSubstr("devices: no such key"));
  EXPECT_THAT(error_of(with("ramp_k = 96", "ramp = 96")), HasSubstr("device.big.products.bf16, ramp: no such key"));
  EXPECT_THAT(error_of(with("products.fp8", "products.fp9")),
              AllOf(HasSubstr("device.big.products"), HasSubstr("'fp9' is not one of"), HasSubstr("nearest is 'fp")));
  EXPECT_THAT(error_of(with("\"96GiB\"", "\"96Gib\"")),
              AllOf(HasSubstr("device.big, memory: unit 'Gib' is not one of"), HasSubstr("the nearest is 'GiB'"),
                    HasSubstr("write it as \"80GiB\"")));
  EXPECT_THAT(error_of(with("\"2us\"", "\"2\"")),
              HasSubstr("[[level]] 1, latency: '2' has no unit; write one of s, ms"));
  EXPECT_THAT(error_of(with("\"2us\"", "\"us\"")), HasSubstr("'us' is not a number with a unit"));
  EXPECT_THAT(error_of(with("\"2us\"", "true")), HasSubstr("[[level]] 1, latency: is not a number"));
  EXPECT_THAT(error_of(with("\"2us\"", "-2e-6")), HasSubstr("[[level]] 1, latency: is -2e-06, which is negative"));
  EXPECT_THAT(error_of(with("\"600GB/s\"", "0")), HasSubstr("[[level]] 1, rate: is zero"));
  EXPECT_THAT(error_of(with("\"600GB/s\"", "\"600gbit\"")), HasSubstr("the nearest is 'Gb/s'"));
  EXPECT_THAT(error_of(with("\"600GB/s\"", "\"600mbps\"")), HasSubstr("the nearest is 'Mb/s'"));
  EXPECT_THAT(error_of(with("\"600GB/s\"", "\"600GB\"")), HasSubstr("the nearest is 'GB/s'"));
  EXPECT_THAT(error_of(with("time_error = 0.2", "time_error = 1")), HasSubstr("is not a number from 0 to 0.9"));
  EXPECT_THAT(error_of(with("\"50000h\"", "\"5 years\"")), HasSubstr("device.big, mtbf: unit 'years'"));
  EXPECT_THAT(error_of(with("\"600GB/s\"", "inf")), HasSubstr("[[level]] 1, rate: is not a number"));
  EXPECT_THAT(error_of(with("\"96GiB\"", "1e19")), HasSubstr("memory: is too large"));
  EXPECT_THAT(error_of(with("units = 100", "is_processor = 1")), HasSubstr("is_processor: is neither true nor false"));
  EXPECT_THAT(error_of(with("sustained = 0.9", "sustained = 2")), HasSubstr("is not a number from 0.001 to 1"));
  EXPECT_THAT(error_of(with("units = 100", "units = 0")), HasSubstr("units: is not a whole number of 1 or more"));
  EXPECT_THAT(error_of(with("units = 100", "units = 1.5")), HasSubstr("units: is not a whole number of 1 or more"));
  EXPECT_THAT(error_of(with("[128, 256]", "128")), HasSubstr("tile: is not a pair of numbers"));
  EXPECT_THAT(error_of(with("[128, 256]", "[128, 0]")), HasSubstr("tile: is not a pair of numbers"));
  EXPECT_THAT(error_of(with("\"300TFLOP/s\"", "\"500TFLOP/s\"")), HasSubstr("reached: is more than peak"));
  EXPECT_THAT(error_of(with("fraction = 0.75", "fraction = 1.5")), HasSubstr("is not a number from 0.001 to 1"));
  EXPECT_THAT(error_of(with("reduce_speedup = 1.5", "reduce_speedup = 0")), HasSubstr("is not a number of 1 or more"));
  EXPECT_THAT(error_of(with("units = 100", "reserved = \"96GiB\"")), HasSubstr("reserved: is not less than memory"));
  EXPECT_THAT(error_of(with("name = \"two kinds\"", "name = 2")), HasSubstr("name: is not a text"));
  EXPECT_THAT(error_of(with("disk_write = \"3 GB/s\"\n", "")), HasSubstr("give disk_read and disk_write, or neither"));
  EXPECT_THAT(error_of(with("count = 2", "count = 2147483647")), HasSubstr("gives 2147483647 x 8 devices"));
  EXPECT_THAT(error_of("device = 3"), HasSubstr("device: is not a table"));
  EXPECT_THAT(error_of("host = 3"), HasSubstr("host: is not a list of tables"));
  EXPECT_THROW(read_hardware(folder_ / "none.toml"), DataError);
}

TEST_F(HardwareFile, WhatIsMissingIsSaid) {
  EXPECT_THAT(error_of(without("memory = \"96GiB\"")), HasSubstr("device.big, memory: is missing"));
  EXPECT_THAT(error_of(without("memory_rate = \"2.5TB/s\"")), HasSubstr("device.big, memory_rate: is missing"));
  EXPECT_THAT(error_of(with("{reached = \"20TFLOP/s\"}", "{tile = [8, 8]}")), HasSubstr("is missing, and so is peak"));
  EXPECT_THAT(error_of("[device.mine]\nmemory = 1e9"), HasSubstr("device.mine, products: is missing"));
  EXPECT_THAT(error_of("[device.mine]\nmemory = 1e9\nproducts = {}"), HasSubstr("device.mine, products: is empty"));
  EXPECT_THAT(error_of(without("name = \"pair\"")), HasSubstr("[[level]] 1, name: is missing"));
  EXPECT_THAT(error_of(without("rate = \"600GB/s\"")), HasSubstr("[[level]] 1, rate: is missing"));
  EXPECT_THAT(error_of(without("devices = 2")), HasSubstr("[[level]] 1, devices: is missing"));
  EXPECT_THAT(error_of("[device.mine]\nlike = \"t4\""), HasSubstr("host: is missing"));
  EXPECT_THAT(error_of("[[host]]\ndevice = \"t4\"\ndevices = 2"), HasSubstr("level: is missing: 2 devices have links"));
  EXPECT_THAT(error_of("[[host]]\n"), HasSubstr("device: is missing, and 0 devices are described"));
}

TEST_F(HardwareFile, UnknownDevicesAreSaid) {
  EXPECT_THAT(error_of(with("\"a100-40\"", "\"a100-48\"")),
              AllOf(HasSubstr("[[host]] 2, device: 'a100-48' is neither described here nor a preset"),
                    HasSubstr("the nearest is 'a100-4"), HasSubstr("add [device.a100-48]")));
  EXPECT_THAT(error_of(with("device = \"big\"", "device = \"bigg\"")), HasSubstr("the nearest is 'big'"));
  EXPECT_THAT(error_of("[device.mine]\nlike = \"rtx-409\"\n"), HasSubstr("the nearest is 'rtx-4090'"));
  EXPECT_THAT(error_of("[device.a]\nname = \"b\"\nlike = \"t4\"\n[device.b]\nlike = \"t4\"\n"),
              HasSubstr("device.b: another device is called 'b'"));
}

TEST_F(HardwareFile, LevelsMustNestAndHaveAllDevices) {
  EXPECT_THAT(error_of(with("devices = 2", "devices = 3")),
              HasSubstr("[[level]] 1, devices: domains of 3 cut a host of 8 devices in the middle"));
  EXPECT_THAT(error_of(with("name = \"node\"\ndevices = 8", "name = \"node\"\ndevices = 2")),
              HasSubstr("[[level]] 2, devices: 2 does not nest: the level before has domains of 2"));
  EXPECT_THAT(error_of(with("devices = 2", "devices = 16")), HasSubstr("8 does not nest"));
  EXPECT_THAT(error_of(with("rate = \"200Gb/s\"", "rate = \"200Gb/s\"\ndevices = 16")),
              AllOf(HasSubstr("the last level has 16 of 20 devices"), HasSubstr("add an outer [[level]]")));
  EXPECT_THAT(error_of(with("rate = \"200Gb/s\"", "rate = \"200Gb/s\"\ndevices = 24")),
              HasSubstr("the last level has 24 of 20 devices"));
  // Four devices before eight: their domains would be half of one host and half of the next.
  EXPECT_THAT(error_of(with("count = 2", "count = 1")), "no error");
  std::string hosts = "[[host]]\ndevice = \"t4\"\ndevices = 4\n[[host]]\ndevice = \"t4\"\ndevices = 8\n";
  hosts += "[[level]]\nname = \"host\"\ndevices = 8\nrate = 1e9\n[[level]]\nname = \"cluster\"\nrate = 1e9\n";
  EXPECT_THAT(error_of(hosts), AllOf(HasSubstr("domains of 8 cut a host of 8 devices in the middle"),
                                     HasSubstr("list the hosts with most devices first")));
}

TEST_F(HardwareFile, RanksHaveDevicesHostsAndLevels) {
  const Hardware unequal = read(kUnequal);
  EXPECT_EQ(unequal.device_of(0).alias, "big");
  EXPECT_EQ(unequal.device_of(15).alias, "big");
  EXPECT_EQ(unequal.device_of(16).alias, "a100-40");
  EXPECT_EQ(unequal.host_of(15).devices, 8);
  EXPECT_EQ(unequal.host_of(19).devices, 4);
  EXPECT_THROW(unequal.device_of(20), UsageError);
  EXPECT_THROW(unequal.device_of(-1), UsageError);
  EXPECT_EQ(unequal.level_of({3}).name, "pair") << "the first for one rank";
  EXPECT_EQ(unequal.level_of({2, 3}).name, "pair");
  EXPECT_EQ(unequal.level_of({1, 2}).name, "node");
  EXPECT_EQ(unequal.level_of({0, 7}).name, "node");
  EXPECT_EQ(unequal.level_of({7, 8}).name, "cluster");
  EXPECT_EQ(unequal.level_of({16, 17, 18, 19}).name, "node");
  EXPECT_EQ(unequal.level_of({0, 19}).name, "cluster");
  EXPECT_THROW(unequal.level_of({}), UsageError);
  EXPECT_THROW(unequal.level_of({19, 20}), UsageError);
}

std::vector<std::string> level_names(const Hardware& hardware) {
  std::vector<std::string> names;
  for (const LinkLevel& level : hardware.levels) names.push_back(level.name + " " + std::to_string(level.devices));
  return names;
}

TEST_F(HardwareFile, PresetsAreReadAsTheyWereWritten) {
  for (const std::string& alias : hardware_presets()) {
    for (const int64_t per_host : {1, 2, 4, 8}) {
      for (const int64_t hosts : {1, 3}) {
        if (alias.starts_with("gh200") && per_host > 4) continue;
        const Hardware preset =
            preset_hardware({.device = alias, .per_host = per_host, .hosts = hosts, .link = "100Gb"});
        EXPECT_EQ(preset.num_devices(), per_host * hosts);
        EXPECT_EQ(read(to_toml(preset)), preset) << to_toml(preset);
      }
    }
  }
}

TEST(HardwarePresets, HavePositiveNumbersAndReachNoMoreThanTheirPeaks) {
  for (const std::string& alias : hardware_presets()) {
    const HardwareDevice device = *preset_device(alias);
    EXPECT_EQ(device.alias, alias);
    EXPECT_EQ(preset_device(device.name), device) << "found by its name too";
    EXPECT_GT(device.units, 1);
    EXPECT_FALSE(device.products.empty());
    for (const ProductRate& rate : device.products) {
      EXPECT_GT(rate.flops, 0) << alias;
      EXPECT_GE(rate.peak_flops, rate.flops) << alias;
    }
    EXPECT_GT(device.memory_bytes, 8 * device.reserved_bytes);
    EXPECT_GT(device.memory_bytes_per_second, 1e11);
    EXPECT_GT(device.host_bytes_per_second, 1e9);
    const Hardware two = preset_hardware({.device = alias, .per_host = 2, .hosts = 2, .link = "25GB"});
    int64_t inner = 0;
    for (const LinkLevel& level : two.levels) {
      EXPECT_GT(level.devices, inner);
      EXPECT_GT(level.bytes_per_second, 0);
      EXPECT_GT(level.latency_seconds, 0);
      EXPECT_LE(level.fraction, 1);
      EXPECT_GE(level.reduce_speedup, 1);
      inner = level.devices;
    }
    EXPECT_EQ(inner, 4);
  }
}

TEST(HardwarePresets, AreOnThePage) {
  for (const std::string& alias : hardware_presets()) EXPECT_THAT(page(), HasSubstr("`" + alias + "`"));
}

TEST(HardwarePresets, HaveTheLinksOfTheirHosts) {
  const auto levels = [](const std::string& device, int64_t per_host, int64_t hosts, const std::string& link = "") {
    return level_names(preset_hardware({.device = device, .per_host = per_host, .hosts = hosts, .link = link}));
  };
  EXPECT_THAT(levels("a100-80", 8, 1), ElementsAre("nvlink 8"));
  EXPECT_THAT(levels("a100-80", 8, 4), ElementsAre("nvlink 8", "cluster 32"));
  EXPECT_THAT(levels("a100-80", 1, 4), ElementsAre("cluster 4"));
  EXPECT_THAT(levels("a100-80", 1, 1), ElementsAre("host 1"));
  EXPECT_THAT(levels("a100-80-pcie", 8, 1), ElementsAre("pair 2", "host 8"));
  EXPECT_THAT(levels("a100-80-pcie", 3, 1), ElementsAre("host 3"));
  EXPECT_THAT(levels("rtx-4090", 8, 2, "25Gb"), ElementsAre("host 8", "cluster 16"));
  EXPECT_THAT(levels("v100-16", 8, 1), ElementsAre("pair 2", "quad 4", "nvlink 8"));
  EXPECT_THAT(levels("v100-32", 4, 2), ElementsAre("pair 2", "nvlink 4", "cluster 8"));
  EXPECT_THAT(levels("v100-32-dgx2", 16, 2), ElementsAre("nvlink 16", "cluster 32"));
  EXPECT_THAT(levels("gb200", 4, 18), ElementsAre("nvlink 72"));
  EXPECT_THAT(levels("gb200", 4, 36), ElementsAre("nvlink 72", "cluster 144"));
  EXPECT_THAT(levels("tpu-v4", 4, 256), ElementsAre("ici 1024"));
  const auto cluster_rate = [](const std::string& device, int64_t per_host, const std::string& link = "") {
    return preset_hardware({.device = device, .per_host = per_host, .hosts = 2, .link = link})
        .levels.back()
        .bytes_per_second;
  };
  EXPECT_EQ(cluster_rate("a100-80", 8), 25e9);
  EXPECT_EQ(cluster_rate("h100-80", 8), 50e9);
  EXPECT_EQ(cluster_rate("v100-32", 4), 12.5e9);
  EXPECT_EQ(cluster_rate("v100-32", 8), 6.25e9) << "two devices share a network card";
  EXPECT_EQ(cluster_rate("a100-80", 8, "100Gb"), 12.5e9);
  for (const char* link : {"10GB/s", "10GB", "10 GB/s", "80Gb", "80Gbps", "80 Gbit/s", "80Gbit"}) {
    EXPECT_EQ(cluster_rate("a100-80", 8, link), 10e9) << link;
  }
}

TEST(HardwarePresets, AChoiceThatCannotBeIsSaid) {
  const auto error_of = [](const HardwareChoice& choice) -> std::string {
    try {
      preset_hardware(choice);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({.device = "a100-8"}), HasSubstr("the nearest is 'a100-80'"));
  EXPECT_THAT(error_of({.device = "a100-80", .per_host = 0}), HasSubstr("devices of a host: 0 is not a number from 1"));
  EXPECT_THAT(error_of({.device = "a100-80", .hosts = -1}), HasSubstr("hosts: -1 is not a number from 1"));
  EXPECT_THAT(error_of({.device = "a100-80", .per_host = 16}), HasSubstr("their links connect at most 8"));
  EXPECT_THAT(error_of({.device = "rtx-4090", .hosts = 2}),
              AllOf(HasSubstr("rtx-4090 has no usual network between hosts"), HasSubstr("200Gb (bits)")));
  EXPECT_THAT(error_of({.device = "rtx-4090"}), "no error");
  EXPECT_THAT(error_of({.device = "a100-80", .hosts = 2, .link = "25"}), HasSubstr("'25' is not a rate"));
  EXPECT_THAT(error_of({.device = "a100-80", .hosts = 2, .link = "0GB"}), HasSubstr("'0GB' is not a rate"));
  EXPECT_THAT(error_of({.device = "a100-80", .hosts = 2, .link = "80gbps"}), HasSubstr("200Gbps (bits)"));
  EXPECT_EQ(preset_device("a100"), std::nullopt);
  EXPECT_EQ(preset_hardware({.device = "t4", .price_per_hour = 0.35}).devices.front().price_per_hour, 0.35);
}

}  // namespace
}  // namespace caravan::testing::hardware_test
