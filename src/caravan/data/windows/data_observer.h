#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace caravan {

/// Follows the preparation of data, which may take minutes. Any method may throw to cancel the work, which then leaves
/// no file behind. Called on the thread that does the work.
class DataObserver {
 public:
  virtual ~DataObserver() = default;
  /// A new stage begins. `stage` is a string literal, such as "tokenizing". `total` is in bytes of text; 0: unknown.
  virtual void begin(std::string_view /*stage*/, int64_t /*total*/) {}
  /// Called every few milliseconds with the bytes of text done since the last call; may be 0.
  virtual void advance(int64_t /*bytes*/) {}

  /// Ignores everything. Any thread.
  static DataObserver& none() {
    static DataObserver ignore;
    return ignore;
  }
};

/// Reports that work continues, but not how much is done: for a second pass over the same text.
class SecondPass final : public DataObserver {
 public:
  explicit SecondPass(DataObserver& outer) : outer_(outer) {}
  void advance(int64_t /*bytes*/) override { outer_.advance(0); }

 private:
  DataObserver& outer_;
};

/// Calls use(piece) for `bytes` in pieces of at most 1 MiB, and reports each to `observer`.
template <class View, class Use>
void in_pieces(View bytes, DataObserver& observer, Use use) {
  constexpr size_t kPiece = size_t{1} << 20;
  for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, bytes.size() - begin);
    use(View(bytes.data() + begin, count));
    observer.advance(static_cast<int64_t>(count));
  }
}

}  // namespace caravan
