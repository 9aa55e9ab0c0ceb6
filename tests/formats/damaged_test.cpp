#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"

namespace caravan::testing::damaged_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

/// A valid checkpoint of two ranks, which each test damages: "w" [6, 4] in two pieces of rows, "v" [5] in one piece.
class Damaged : public ::testing::Test {
 protected:
  Damaged() {
    on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
      save_checkpoint(
          run_.path(), {.step = 5, .model = "{}"},
          {piece_of("w", saved_.at("w"), {{"dp", Shard{0}}}, mesh), piece_of("v", saved_.at("v"), {}, mesh)},
          mesh.world(), 0);
    });
  }

  void read() const {
    CheckpointReader reader(folder_);
    reader.verify(*make_record_world(0, 1));
    reader.check(names_and_shapes(saved_));
  }

  json manifest() const { return json::parse(read_file(folder_ / "manifest.json")); }
  /// Writes a manifest with a correct hash.
  void write(json manifest) const {
    manifest.erase("hash");
    manifest["hash"] = content_hash(manifest.dump()).hex();
    write_file(folder_ / "manifest.json", manifest.dump());
  }

  /// The error after a change to the manifest; "" if there is none.
  std::string refusal(const std::function<void(json&)>& change) const {
    const json sound = manifest();
    json changed = sound;
    change(changed);
    write(changed);
    std::string message;
    try {
      read();
    } catch (const DataError& error) {
      message = error.what();
    }
    write(sound);
    return message;
  }

  /// A manifest as the second version had it.
  static json as_second_version(json root) {
    root["version"] = 2;
    const json files = std::exchange(root["files"], json::object());
    for (const json& file : files) {
      root["files"][file["name"].get<std::string>()] = {{"bytes", file["bytes"]}, {"hash", file["hash"]}};
    }
    for (auto& [name, tensor] : root["tensors"].items()) {
      for (json& piece : tensor["pieces"]) {
        piece = {
            {"file", files[piece[0].get<size_t>()]["name"]}, {"offset", piece[1]}, {"size", piece[2]}, {"key", name}};
      }
    }
    return root;
  }

  TemporaryFolder run_;
  fs::path folder_ = run_ / "step_000005";
  const Whole saved_{{"w", at::arange(24, at::kFloat).view({6, 4})}, {"v", at::arange(5, at::kFloat)}};
};

TEST_F(Damaged, IsSoundBefore) {
  read();
  write(manifest());
  read();
}

TEST_F(Damaged, ATruncatedShardIsNamed) {
  for (const int64_t bytes : {0, 1, 100}) {
    fs::resize_file(folder_ / "rank_00001.safetensors", static_cast<uintmax_t>(bytes));
    EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("rank_00001.safetensors"));
  }
  fs::remove(folder_ / "rank_00001.safetensors");
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("cannot be found"));
}

TEST_F(Damaged, AnyAlteredByteOfAShardIsFound) {
  const fs::path shard = folder_ / "rank_00000.safetensors";
  const std::string sound = read_file(shard);
  for (size_t i = 0; i < sound.size(); i += 7) {
    std::string altered = sound;
    altered[i] = static_cast<char>(altered[i] ^ 4);
    write_file(shard, altered);
    EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("altered")) << "byte " << i;
  }
}

/// One rank reads it and all refuse it. check() alone reads no tensor.
TEST_F(Damaged, AnAlteredShardIsTheSameErrorOnEveryRank) {
  for (const char* name : {"rank_00000.safetensors", "rank_00001.safetensors"}) {
    const std::string sound = read_file(folder_ / name);
    std::string altered = sound;
    altered.back() = static_cast<char>(altered.back() ^ 1);
    write_file(folder_ / name, altered);
    for (const int ranks : {1, 2, 3}) {
      std::vector<std::string> messages(static_cast<size_t>(ranks));
      on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
        CheckpointReader reader(folder_);
        reader.check(names_and_shapes(saved_));
        messages[mesh.rank()] = message_of<DataError>([&] { reader.verify(mesh.world()); });
      });
      EXPECT_THAT(messages.front(), HasSubstr(std::string(name) + ": does not have the hash that was written"));
      EXPECT_THAT(messages, ::testing::Each(messages.front()));
    }
    write_file(folder_ / name, sound);
  }
}

/// A rank opens only the shards that it needs a part of.
TEST_F(Damaged, ShardsThatHoldOtherRowsAreNotRead) {
  CheckpointReader reader(folder_);
  fs::remove(folder_ / "rank_00001.safetensors");
  at::Tensor rows = at::zeros({3, 4});
  reader.read("w", {{0, 0}, {3, 4}}, rows);
  EXPECT_TRUE(at::equal(rows, saved_.at("w").narrow(0, 0, 3)));
  EXPECT_THAT(message_of<DataError>([&] {
                reader.read("w", {{1, 0}, {3, 4}}, rows);
              }),
              HasSubstr("rank_00001.safetensors"));
}

TEST_F(Damaged, AnyAlteredByteOfTheManifestIsFound) {
  const fs::path path = folder_ / "manifest.json";
  const std::string sound = read_file(path);
  for (size_t i = 0; i < sound.size(); ++i) {
    if (sound[i] == ' ' || sound[i] == '\n') continue;
    std::string altered = sound;
    altered[i] = altered[i] == '1' ? '2' : '1';
    write_file(path, altered);
    EXPECT_NE(message_of<DataError>([&] { read(); }), "") << "byte " << i;
  }
  for (const size_t length : {size_t{0}, size_t{1}, sound.size() / 2, sound.size() - 2}) {
    write_file(path, sound.substr(0, length));
    EXPECT_NE(message_of<DataError>([&] { read(); }), "") << "length " << length;
  }
}

/// Written when each piece named its file and its key.
TEST_F(Damaged, AManifestOfTheSecondVersionIsRead) {
  const json sound = manifest();
  const json second = as_second_version(sound);
  write(second);
  read();
  CheckpointReader reader(folder_);
  for (const auto& [name, tensor] : saved_) EXPECT_TRUE(at::equal(read_whole(reader, name, tensor), tensor)) << name;
  const auto refusal = [&](const std::function<void(json&)>& change) {
    json changed = second;
    change(changed);
    write(changed);
    return message_of<DataError>([&] { read(); });
  };
  const auto piece = [](json& root) -> json& { return root["tensors"]["w"]["pieces"][1]; };
  for (const char* name : {"../rank_00001.safetensors", "/etc/passwd", "..", ""}) {
    EXPECT_THAT(refusal([&](json& root) { piece(root)["file"] = name; }), HasSubstr("w is not a plain file name"));
  }
  EXPECT_THAT(refusal([&](json& root) { piece(root)["file"] = "other.safetensors"; }),
              HasSubstr("is in a file that is not listed"));
  EXPECT_THAT(refusal([&](json& root) { piece(root)["key"] = "zzz"; }), HasSubstr("w is stored as 'zzz'"));
  EXPECT_THAT(refusal([&](json& root) { piece(root)["more"] = 1; }), HasSubstr("unknown key 'more'"));
  EXPECT_THAT(refusal([&](json& root) { piece(root) = sound["tensors"]["w"]["pieces"][1]; }),
              HasSubstr("w is not an object"));
  EXPECT_THAT(refusal([&](json& root) {
                root["files"]["../x"] = {{"bytes", 1}, {"hash", ""}};
              }),
              HasSubstr("files is not a plain file name"));
}

/// Written before manifests knew the data and the numerics of a run.
TEST_F(Damaged, AManifestOfTheFirstVersionIsRead) {
  json first = as_second_version(manifest());
  first["version"] = 1;
  first.erase("data");
  first.erase("numerics");
  write(first);
  read();
  EXPECT_EQ(CheckpointReader(folder_).info().train_hash, "");
  EXPECT_EQ(CheckpointReader(folder_).info().numerics, Numerics{});
}

/// A number that a double cannot hold makes the whole manifest invalid.
TEST_F(Damaged, ANumberOutOfRangeIsRefused) {
  std::string text = manifest().dump();
  const std::string position = "\"position\":0";
  ASSERT_NE(text.find(position), std::string::npos);
  text.replace(text.find(position), position.size(), "\"position\":1e999");
  write_file(folder_ / "manifest.json", text);
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("manifest.json: the manifest is not JSON"));
}

TEST_F(Damaged, TheOptimizerOfAProgramIsChecked) {
  const json optimizer{{"kind", "sgd"},
                       {"groups", {{{"options", {{"lr", 0.1}, {"nesterov", 0}}}, {"parameters", {"w"}}}}},
                       {"schedulers", {3}}};
  EXPECT_EQ(refusal([&](json& root) { root["optimizer"] = optimizer; }), "");
  const auto with = [&](const std::function<void(json&)>& change) {
    return refusal([&](json& root) {
      root["optimizer"] = optimizer;
      change(root["optimizer"]);
    });
  };
  EXPECT_THAT(with([](json& own) { own["kind"] = 3; }), HasSubstr("optimizer.kind is not a string"));
  EXPECT_THAT(with([](json& own) { own.erase("groups"); }), HasSubstr("optimizer has no 'groups'"));
  EXPECT_THAT(with([](json& own) { own["groups"] = 1; }), HasSubstr("optimizer.groups is not a list"));
  EXPECT_THAT(with([](json& own) { own["groups"][0] = 1; }), HasSubstr("optimizer.groups is not an object"));
  EXPECT_THAT(with([](json& own) { own["groups"][0]["options"] = 1; }), HasSubstr("a group without options"));
  EXPECT_THAT(with([](json& own) { own["groups"][0]["options"]["lr"] = "1"; }), HasSubstr("lr is not a number"));
  EXPECT_THAT(with([](json& own) { own["groups"][0]["parameters"] = {1}; }), HasSubstr("is not a string"));
  EXPECT_THAT(with([](json& own) { own["schedulers"] = {-1}; }), HasSubstr("schedulers is not a whole number"));
}

TEST_F(Damaged, AManifestOfNestedBracketsIsRefused) {
  write_file(folder_ / "manifest.json", std::string(400'000, '[') + std::string(400'000, ']'));
  EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("manifest.json: nests arrays and objects more than"));
}

TEST_F(Damaged, HostileNumbersAreRefusedBeforeAnythingIsAllocated) {
  const int64_t huge = int64_t{1} << 62;
  const auto piece = [](json& root, int i) -> json& { return root["tensors"]["w"]["pieces"][i]; };
  constexpr int kFile = 0;
  constexpr int kOffset = 1;
  constexpr int kSize = 2;
  const std::vector<std::pair<std::string, std::function<void(json&)>>> changes{
      {"w has an impossible shape",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {huge, 4};
       }},
      {"24 elements, but its shape has 18014398509481984",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {int64_t{1} << 48, 64};
       }},
      {"w has pieces of 24 elements, but its shape has 28",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {7, 4};
       }},
      {"w has pieces that overlap",
       [&](json& root) {
         piece(root, 1)[kOffset] = {2, 0};
       }},
      {"w has pieces that overlap", [&](json& root) { root["tensors"]["w"]["pieces"].push_back(piece(root, 0)); }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)[kOffset] = {4, 0};
       }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)[kOffset] = {INT64_MAX, 0};
       }},
      {"w has a piece outside its shape",
       [&](json& root) {
         piece(root, 1)[kSize] = {INT64_MAX, 4};
       }},
      {"w has a piece with a different number of dims", [&](json& root) { piece(root, 1)[kSize] = {12}; }},
      {"w is not a whole number",
       [&](json& root) {
         piece(root, 1)[kOffset] = {-3, 0};
       }},
      {"w is not a whole number",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {6.5, 4};
       }},
      {"w is not a whole number",
       [&](json& root) {
         root["tensors"]["w"]["shape"] = {UINT64_MAX, 4};
       }},
      {"step is not a whole number", [&](json& root) { root["step"] = -1; }},
      {"position is not a whole number", [&](json& root) { root["position"] = 1e300; }},
      {"counters is not an object", [&](json& root) { root["counters"] = json::array({3}); }},
      {"counters.epoch is not a whole number",
       [&](json& root) {
         root["counters"] = {{"epoch", 1.5}};
       }},
      {"version is 4", [&](json& root) { root["version"] = 4; }},
      {"files is not an object", [&](json& root) { root["version"] = 2; }},
      {"version is 0", [&](json& root) { root["version"] = 0; }},
      {"has no 'version'", [&](json& root) { root.erase("version"); }},
      {"unknown key 'data'", [&](json& root) { root["version"] = 1; }},
      {"has no 'numerics'", [&](json& root) { root.erase("numerics"); }},
      {"data.train is not a string", [&](json& root) { root["data"]["train"] = 1; }},
      {"numerics.threads_per_rank is not a whole", [&](json& root) { root["numerics"]["threads_per_rank"] = -1; }},
      {"files is not a plain file name", [&](json& root) { root["files"][1]["name"] = "../rank_00001.safetensors"; }},
      {"files is not a plain file name", [&](json& root) { root["files"][1]["name"] = "/etc/passwd"; }},
      {"files is not a plain file name", [&](json& root) { root["files"][1]["name"] = ".."; }},
      {"files is not a plain file name", [&](json& root) { root["files"][1]["name"] = ""; }},
      {"files lists rank_00000.safetensors twice", [&](json& root) { root["files"].push_back(root["files"][0]); }},
      {"w is in file 2, but 2 are listed", [&](json& root) { piece(root, 1)[kFile] = 2; }},
      {"w is not a whole number", [&](json& root) { piece(root, 1)[kFile] = -1; }},
      {"w has two pieces in rank_00000.safetensors", [&](json& root) { piece(root, 1)[kFile] = 0; }},
      {"cannot be found",
       [&](json& root) {
         root["files"].push_back({{"name", "gone"}, {"bytes", 1}, {"hash", ""}});
       }},
      {"bytes, but 9 were written", [&](json& root) { root["files"][0]["bytes"] = 9; }},
      {"does not have the hash", [&](json& root) { root["files"][0]["hash"] = "00"; }},
      {"unknown key 'more'", [&](json& root) { root["more"] = 1; }},
      {"unknown key 'more'", [&](json& root) { root["files"][0]["more"] = 1; }},
      {"w has a piece that is not [file, offset, size]",
       [&](json& root) { piece(root, 0).insert(piece(root, 0).end(), 2, 1); }},
      {"w has a piece that is not [file, offset, size]", [&](json& root) { piece(root, 0) = json::object(); }},
      {"has no 'recipe'", [&](json& root) { root.erase("recipe"); }},
      {"recipe is not a string", [&](json& root) { root["recipe"] = 3; }},
      {"tensors is not an object", [&](json& root) { root["tensors"] = json::array(); }},
      {"w is not a list", [&](json& root) { root["tensors"]["w"]["shape"] = "6"; }},
      {"but the manifest says F64", [&](json& root) { root["tensors"]["w"]["dtype"] = "F64"; }},
      {"zzz",
       [&](json& root) {
         root["tensors"]["zzz"] = root["tensors"]["w"];
         root["tensors"].erase("w");
       }},
      {"w is cut along more than 8 dims",
       [&](json& root) {
         root["tensors"]["w"] = {{"shape", std::vector<int>(9, 2)},
                                 {"dtype", "F32"},
                                 {"pieces", json::array({{0, std::vector<int>(9, 0), std::vector<int>(9, 1)}})}};
       }},
      {"w has pieces that overlap",
       [&](json& root) {  // so many elements that their sum overflows
         root["tensors"]["w"]["shape"] = {int64_t{1} << 56};
         root["tensors"]["w"]["pieces"] = std::vector<json>(300, {0, {0}, {int64_t{1} << 56}});
       }},
  };
  for (const auto& [fact, change] : changes) EXPECT_THAT(refusal(change), HasSubstr(fact));
}

/// A manifest may be consistent but describe more than its files hold. check() finds that before the caller allocates.
TEST_F(Damaged, AShapeThatTheShardsDoNotHoldIsRefused) {
  json root = manifest();
  const int64_t rows = int64_t{1} << 50;
  root["tensors"]["v"] = {{"shape", {rows}},
                          {"dtype", "F32"},
                          {"pieces", json::array({json::array({root["tensors"]["v"]["pieces"][0][0], {0}, {rows}})})}};
  write(root);
  CheckpointReader reader(folder_);
  EXPECT_THAT(message_of<DataError>([&] { reader.check({{"w", {6, 4}}, {"v", {rows}}}); }), HasSubstr("manifest says"));
}

}  // namespace
}  // namespace caravan::testing::damaged_test
