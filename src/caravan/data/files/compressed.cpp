#include "caravan/data/files/compressed.h"

#include <memory>
#include <string>
#include <zlib.h>
#include <zstd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kGzip = "\x1f\x8b"sv;
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd"sv;
constexpr size_t kDecoded = size_t{1} << 20;

using Use = std::function<void(std::string_view piece)>;

[[noreturn]] void refuse_compressed(const std::filesystem::path& path, std::string fact) {
  throw DataError(
      {.op = "data", .subject = path.string(), .fact = std::move(fact), .action = "copy or compress it again"});
}

class GzipDecoder final : public Decompressor {
 public:
  GzipDecoder(std::filesystem::path path, Use use)
      : Decompressor(std::move(path), std::move(use)), out_(kDecoded, '\0') {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, kGzipOnly + MAX_WBITS) != Z_OK) {
      throw ResourceError({"data", path_.string(), "no memory to decompress it", "", "use a machine with more memory"});
    }
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  void put(std::string_view piece) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));  // NOLINT: zlib only reads it
    stream_.avail_in = static_cast<uInt>(piece.size());
    while (stream_.avail_in > 0 || is_full_) {
      if (is_complete_) {  // another file follows
        inflateReset(&stream_);
        is_complete_ = false;
      }
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        refuse_compressed(
            path_, fmt::format("is a damaged gzip file: {}", stream_.msg == nullptr ? "no reason" : stream_.msg));
      }
      is_complete_ = result == Z_STREAM_END;
      is_full_ = stream_.avail_out == 0 && !is_complete_;
      use_(std::string_view(out_).substr(0, out_.size() - stream_.avail_out));
    }
  }
  bool is_complete() const override { return is_complete_; }

 private:
  z_stream stream_{};
  std::string out_;
  bool is_complete_ = false;
  bool is_full_ = false;  ///< there may be more output without more input
};

class ZstdDecoder final : public Decompressor {
 public:
  ZstdDecoder(std::filesystem::path path, Use use)
      : Decompressor(std::move(path), std::move(use)),
        stream_(ZSTD_createDStream(), &ZSTD_freeDStream),
        out_(kDecoded, '\0') {
    if (!stream_) {
      throw ResourceError({"data", path_.string(), "no memory to decompress it", "", "use a machine with more memory"});
    }
  }

  void put(std::string_view piece) override {
    ZSTD_inBuffer in{piece.data(), piece.size(), 0};
    bool is_full = false;
    while (in.pos < in.size || is_full) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(left) != 0)
        refuse_compressed(path_, fmt::format("is a damaged zstd file: {}", ZSTD_getErrorName(left)));
      is_complete_ = left == 0;
      is_full = out.pos == out.size && !is_complete_;
      use_(std::string_view(out_).substr(0, out.pos));
    }
  }
  bool is_complete() const override { return is_complete_; }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  std::string out_;
  bool is_complete_ = false;
};

}  // namespace

bool is_compressed(std::string_view content) { return content.starts_with(kGzip) || content.starts_with(kZstd); }

Decompressor::Decompressor(std::filesystem::path path, Use use) : path_(std::move(path)), use_(std::move(use)) {}

std::unique_ptr<Decompressor> Decompressor::of(std::string_view beginning, std::filesystem::path path, Use use) {
  if (beginning.starts_with(kGzip)) return std::make_unique<GzipDecoder>(std::move(path), std::move(use));
  return std::make_unique<ZstdDecoder>(std::move(path), std::move(use));
}

void Decompressor::finish() const {
  if (!is_complete()) refuse_compressed(path_, "is truncated: its compressed data ends early");
}

void decompress(std::string_view content, const std::filesystem::path& path, const Use& use, DataObserver& observer) {
  const std::unique_ptr<Decompressor> decoder = Decompressor::of(content, path, use);
  in_pieces(content, observer, [&](std::string_view piece) { decoder->put(piece); });
  decoder->finish();
}

std::string decompress_beginning(std::string_view content, const std::filesystem::path& path) {
  constexpr size_t kBeginning = size_t{16} << 10;
  std::string text;
  const Use take = [&](std::string_view piece) { text += piece; };
  Decompressor::of(content, path, take)->put(content.substr(0, kBeginning));
  return text;
}

}  // namespace caravan
