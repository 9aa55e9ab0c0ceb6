#include "caravan/formats/safetensors/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/data/support.h"

namespace caravan::safetensors_test {
namespace {

std::filesystem::path saved_by_python(std::string_view name) {
  return std::filesystem::path(CARAVAN_SOURCE_DIR) / "tests/formats/fixtures" / name;
}

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const std::span<const std::byte> bytes = file.bytes(name);
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// A file with this header and this many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + std::string(data_bytes, '\1');
}

class Safetensors : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "x.safetensors";

  std::string refusal(std::string_view content) const {
    write_file(path, content);
    const std::string message = message_of<DataError>([&] { const SafetensorsFile file(path); });
    EXPECT_NE(message.find("x.safetensors"), std::string::npos) << message;
    return message;
  }
};

/// python.safetensors was written by the Python package: see tests/data/fixtures/make.py.
TEST_F(Safetensors, ReadsWhatPythonWrites) {
  const SafetensorsFile file(saved_by_python("python.safetensors"));
  EXPECT_EQ(file.tensors().size(), 9U);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\xC3\xA9"}}));
  const auto check = [&]<typename T>(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                                     std::vector<T> expected) {
    EXPECT_EQ(file.at(name).dtype, dtype) << name;
    EXPECT_EQ(file.at(name).shape, shape) << name;
    EXPECT_EQ(values<T>(file, name), expected) << name;
  };
  check("scalar", Dtype::fp32, {}, std::vector{2.5F});
  check("empty", Dtype::fp64, {0, 3}, std::vector<double>{});
  check("f32", Dtype::fp32, {2, 3}, std::vector{0.F, 0.25F, 0.5F, 0.75F, 1.F, 1.25F});
  check("f16", Dtype::fp16, {5}, std::vector<uint16_t>{0, 0x3C00, 0x4000, 0x4200, 0x4400});
  check("bf16", Dtype::bf16, {2}, std::vector<uint16_t>{0x3F80, 0xC000});
  check("i64", Dtype::int64, {2}, std::vector<int64_t>{-1, int64_t{1} << 40});
  check("i32", Dtype::int32, {3}, std::vector<int32_t>{-1, 0, 1});
  check("u8", Dtype::uint8, {7}, std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 6});
  check("bool", Dtype::boolean, {2, 1}, std::vector<uint8_t>{1, 0});
}

/// aligned.safetensors was built by hand from the specification; the Python package loads it.
TEST_F(Safetensors, WritesWhatPythonReads) {
  const std::vector<SafetensorsSpec> specs{{"w", Dtype::fp32, {2, 2}},
                                           {"none", Dtype::int32, {0}},
                                           {"mask", Dtype::boolean, {1, 3}},
                                           {"half", Dtype::bf16, {3}},
                                           {"w.double", Dtype::fp64, {1}}};
  OutputFile out(path, "test");
  SafetensorsWriter writer(out, specs, {{"format", "pt"}});
  const std::vector<float> w{1, 2, 3, 4};
  writer.append("w", bytes_of(w).first(5));
  writer.append("mask", bytes_of(std::vector<uint8_t>{1, 0, 1}));
  writer.append("w.double", bytes_of(std::vector{0.5}));
  writer.append("w", bytes_of(w).subspan(5));
  writer.append("half", bytes_of(std::vector<uint16_t>{0x3F80, 0x4000, 0x4040}));
  writer.append("none", {});
  writer.finish();
  out.finish();
  EXPECT_EQ(read_file(path), read_file(saved_by_python("aligned.safetensors")));
}

TEST_F(Safetensors, DataBeginsOn64BytesAndTensorsOnTheirElements) {
  for (size_t length = 1; length < 130; ++length) {
    OutputFile out(path, "test");
    SafetensorsWriter writer(out, {{std::string(length, 'n'), Dtype::uint8, {1}}, {"wide", Dtype::int64, {2}}});
    writer.append("wide", bytes_of(std::vector<int64_t>{7, 8}));
    writer.append(std::string(length, 'n'), bytes_of(std::vector<uint8_t>{9}));
    writer.finish();
    out.finish();
    const SafetensorsFile file(path);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes("wide").data()) % 64, 0U);
    EXPECT_EQ(values<int64_t>(file, "wide"), (std::vector<int64_t>{7, 8}));
    EXPECT_EQ(values<uint8_t>(file, std::string(length, 'n')), (std::vector<uint8_t>{9}));
  }
}

/// The hash of the written bytes equals that of the file.
TEST_F(Safetensors, TheWriterKnowsTheHashOfTheFile) {
  const std::vector<float> w{1, 2, 3, 4};
  const std::vector<SafetensorsSpec> specs{
      {"mask", Dtype::boolean, {3}}, {"w", Dtype::fp32, {4}}, {"none", Dtype::fp32, {0}}, {"wide", Dtype::fp64, {1}}};
  const std::map<std::string, std::span<const std::byte>> data{
      {"mask", bytes_of(w).first(3)}, {"w", bytes_of(w)}, {"none", {}}, {"wide", bytes_of(w).first(8)}};
  {
    OutputFile out(path, "test");
    SafetensorsWriter writer(out, specs);
    EXPECT_EQ(writer.names(), (std::vector<std::string>{"wide", "w", "none", "mask"}));
    for (const std::string& name : writer.names()) {
      EXPECT_THROW(writer.hash(), UsageError) << "incomplete";
      const size_t first = data.at(name).size() / 2;
      writer.append(name, data.at(name).first(first));
      writer.append(name, data.at(name).subspan(first));
    }
    writer.finish();
    out.finish();
    EXPECT_EQ(writer.hash(), content_hash(read_file(path)));
  }
  OutputFile out(path, "test");
  SafetensorsWriter writer(out, specs);
  for (const auto& [name, bytes] : data) writer.append(name, bytes);
  writer.finish();
  EXPECT_THROW(writer.hash(), UsageError) << "in another order";
}

TEST_F(Safetensors, AFileMayHaveNoTensors) {
  OutputFile out(path, "test");
  SafetensorsWriter writer(out, {});
  writer.finish();
  out.finish();
  EXPECT_EQ(writer.hash(), content_hash(read_file(path)));
  EXPECT_TRUE(SafetensorsFile(path).tensors().empty());
}

TEST_F(Safetensors, TheWriterRefusesMisuse) {
  OutputFile out(path, "test");
  EXPECT_THROW(SafetensorsWriter(out, {{"a", Dtype::fp32, {1}}, {"a", Dtype::fp32, {1}}}), UsageError);
  EXPECT_THROW(SafetensorsWriter(out, {{"__metadata__", Dtype::fp32, {1}}}), UsageError);
  EXPECT_THROW(SafetensorsWriter(out, {{"a", Dtype::fp32, {-1}}}), UsageError);
  EXPECT_THROW(SafetensorsWriter(out, {{"a", Dtype::fp32, {int64_t{1} << 40, int64_t{1} << 40}}}), UsageError);
  SafetensorsWriter writer(out, {{"a", Dtype::fp32, {2}}});
  const std::vector<float> three{1, 2, 3};
  EXPECT_THROW(writer.append("b", {}), UsageError);
  EXPECT_THROW(writer.append("a", bytes_of(three)), UsageError);
  writer.append("a", bytes_of(three).first(4));
  EXPECT_NE(message_of<UsageError>([&] { writer.finish(); }).find("4 bytes are missing"), std::string::npos);
}

TEST_F(Safetensors, NamesTheNearestTensor) {
  const SafetensorsFile file(saved_by_python("python.safetensors"));
  EXPECT_TRUE(file.has("bf16"));
  EXPECT_FALSE(file.has("bf61"));
  const auto message = message_of<DataError>([&] { file.bytes("bf161"); });
  EXPECT_NE(message.find("has 9 tensors, but not bf161"), std::string::npos) << message;
  EXPECT_NE(message.find("the nearest name is bf16"), std::string::npos) << message;
}

TEST_F(Safetensors, RefusesOtherFiles) {
  EXPECT_NE(refusal("").find("has 0 bytes"), std::string::npos);
  EXPECT_NE(refusal("1234567").find("has 7 bytes"), std::string::npos);
  refusal(std::string(8, '\0'));
  refusal(std::string(100, '\0'));
  refusal("Call me Ishmael. Some years ago");
  EXPECT_THROW(SafetensorsFile(folder / "missing"), DataError);
  EXPECT_THROW(SafetensorsFile{folder.path()}, DataError);
}

/// Truncated anywhere, or with one more byte, the file is invalid.
TEST_F(Safetensors, RefusesATruncatedFile) {
  for (const char* name : {"python.safetensors", "aligned.safetensors"}) {
    const std::string whole = read_file(saved_by_python(name));
    for (size_t size = 0; size < whole.size(); ++size) refusal(std::string_view(whole).substr(0, size));
    EXPECT_NE(refusal(whole + "x").find("but the header describes"), std::string::npos);
  }
}

TEST_F(Safetensors, RefusesAHugeHeader) {
  for (const uint64_t size : {uint64_t{9}, uint64_t{100'000'001}, uint64_t{1} << 62, ~uint64_t{0}, ~uint64_t{7}}) {
    std::string content(16, ' ');
    std::memcpy(content.data(), &size, sizeof size);
    EXPECT_NE(refusal(content).find("but a header of"), std::string::npos) << size;
  }
}

struct BadHeader {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* message;  ///< a part of it
};

class BadHeaders : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefused) {
  const TemporaryFolder folder;
  const BadHeader& bad = GetParam();
  write_file(folder / "x", file_of(bad.header, bad.data_bytes));
  const auto message = message_of<DataError>([&] { const SafetensorsFile file(folder / "x"); });
  EXPECT_NE(message.find(bad.message), std::string::npos) << message;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":)" + entry(dtype, shape, offsets) + "}";
}

std::string two(const std::string& first_offsets, const std::string& second_offsets) {
  return R"({"a":)" + entry("U8", "[4]", first_offsets) + R"(,"b":)" + entry("U8", "[4]", second_offsets) + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Headers, BadHeaders,
    ::testing::Values(
        BadHeader{"Array", "[]", 0, "begin with {"}, BadHeader{"Space", " {}", 0, "begin with {"},
        BadHeader{"NoJson", "{\"a\":", 0, "is not JSON"}, BadHeader{"Behind", "{} x", 0, "is not JSON"},
        BadHeader{"NotUtf8", "{\"\xFF\":1}", 0, "is not JSON"},
        BadHeader{"Deep", "{\"a\":" + std::string(100'000, '['), 0, "nested too deeply"},
        BadHeader{"DeepObjects", R"({"a":{"b":{"c":{"d":1}}}})", 0, "nested too deeply"},
        BadHeader{"Number", R"({"a":3})", 0, "other keys"}, BadHeader{"NoKeys", R"({"a":{}})", 0, "other keys"},
        BadHeader{"FourKeys", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":1}})", 1, "other keys"},
        BadHeader{"NoShape", R"({"a":{"dtype":"U8","size":[],"data_offsets":[0,1]}})", 1, "other keys"},
        BadHeader{"ShapeNumber", one("U8", "1", "[0,1]"), 1, "lacks dtype, shape"},
        BadHeader{"ThreeOffsets", one("U8", "[1]", "[0,1,1]"), 1, "lacks dtype, shape"},
        BadHeader{"DtypeNumber", R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,1]}})", 1, "lacks dtype"},
        BadHeader{"Dtype", one("F8_E4M3", "[1]", "[0,1]"), 1, "convert it to one of F32, F64"},
        BadHeader{"DtypeCase", one("f32", "[1]", "[0,4]"), 4, "of dtype 'f32'"},
        BadHeader{"WrongDtype", one("F64", "[1]", "[0,4]"), 4, "has 4 bytes for a, but F64 [1] takes 8"},
        BadHeader{"NegativeSize", one("U8", "[-1]", "[0,1]"), 1, "not a whole number"},
        BadHeader{"FractionalSize", one("U8", "[1.0]", "[0,1]"), 1, "not a whole number"},
        BadHeader{"NestedSize", one("U8", "[{}]", "[0,1]"), 1, "nested too deeply"},
        BadHeader{"TextSize", one("U8", "[\"1\"]", "[0,1]"), 1, "not a whole number"},
        BadHeader{"HugeSize", one("U8", "[18446744073709551616]", "[0,1]"), 1, "not a whole number"},
        BadHeader{"Overflow", one("F32", "[4294967296,4294967296,4]", "[0,0]"), 0, "impossible shape"},
        BadHeader{"OverflowTimesZero", one("F32", "[9223372036854775807,4,0]", "[0,0]"), 0, "impossible shape"},
        BadHeader{"NegativeOffset", one("U8", "[1]", "[-1,0]"), 1, "not a whole number"},
        BadHeader{"Backwards", one("U8", "[1]", "[1,0]"), 1, "at bytes 1 to 0"},
        BadHeader{"Outside", one("U8", "[9]", "[0,9]"), 8, "at bytes 0 to 9 of 8"},
        BadHeader{"FarOutside", one("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 8, "of 8"},
        BadHeader{"Overlap", two("[0,4]", "[2,6]"), 6, "an overlap before b"},
        BadHeader{"SameBytes", two("[0,4]", "[0,4]"), 4, "an overlap"},
        BadHeader{"Gap", two("[0,4]", "[5,9]"), 9, "a gap before b"},
        BadHeader{"GapInFront", one("U8", "[1]", "[1,2]"), 2, "a gap before a"},
        BadHeader{"Unclaimed", one("U8", "[1]", "[0,1]"), 2, "has 2 bytes of tensors, but the header describes 1"},
        BadHeader{"NameTwice",
                  R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"a":)" + entry("U8", "[1]", "[1,2]") + "}", 2,
                  "names 'a' twice"},
        BadHeader{"KeyTwice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
                  "names 'dtype' twice"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "names '__metadata__' twice"},
        BadHeader{"MetadataKeyTwice", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "names 'k' twice"},
        BadHeader{"MetadataNumber", R"({"__metadata__":{"k":1}})", 0, "that is not a string"},
        BadHeader{"MetadataList", R"({"__metadata__":[]})", 0, "not an object"}),
    [](const auto& info) { return std::string(info.param.name); });

/// Tensors without elements may start at any boundary between tensors, as in the Python package.
TEST_F(Safetensors, EmptyTensorsMayShareABorder) {
  const std::string header = R"({"a":)" + entry("U8", "[0]", "[0,0]") + R"(,"b":)" + entry("U8", "[2,0]", "[0,0]") +
                             R"(,"c":)" + entry("U8", "[2]", "[0,2]") + R"(,"d":)" + entry("I64", "[0]", "[2,2]") + "}";
  write_file(path, file_of(header, 2));
  EXPECT_EQ(SafetensorsFile(path).tensors().size(), 4U);
}

}  // namespace
}  // namespace caravan::safetensors_test
