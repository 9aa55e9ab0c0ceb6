#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/laws.h"

namespace caravan::testing::cost_test {
namespace {

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kP = Partial{};

Mesh record_mesh(int rank, const Axes& axes) { return Mesh::create(make_record_world(rank, num_ranks(axes)), axes); }

std::vector<int64_t> piece_shape(const std::vector<int64_t>& shape, const Placement& placement, const Mesh& mesh) {
  return local_shape(shape, {{"t", placement}}, mesh);
}

std::vector<Placement> all_for(int n, const std::vector<int64_t>& rows) {
  std::vector<Placement> all = placements_for(n, rows);
  for (const Placement& blocked : blocked_for(n, rows)) all.push_back(blocked);
  return all;
}

/// Forward and backward of every cell on meta tensors: shapes follow the layout, bytes follow redistribute_bytes.
TEST(Cost, EqualsWhatTheRecordBackEndCountsForEveryCell) {
  const std::vector<int64_t> shape{12, 12};
  for (const int n : {1, 2, 3, 4}) {
    for (int rank = 0; rank < n; ++rank) {
      const Mesh mesh = record_mesh(rank, {{"t", n}});
      const MeshAxis& t = mesh["t"];
      const auto sent = [&] { return t.comm().traffic().total_bytes(); };
      for (const Placement& from : all_for(n, shape)) {
        for (const Placement& to : all_for(n, shape)) {
          SCOPED_TRACE(from.to_string() + " -> " + to.to_string() + ", rank " + std::to_string(rank) + " of " +
                       std::to_string(n));
          const auto before_shape = piece_shape(shape, from, mesh);
          const auto after_shape = piece_shape(shape, to, mesh);
          const at::Tensor x = at::empty(before_shape, at::TensorOptions(at::kMeta).dtype(at::kFloat)).requires_grad_();
          int64_t before = sent();
          const at::Tensor y = redistribute(x, {{"t", from}}, t, to);
          EXPECT_EQ(y.sizes(), at::IntArrayRef(after_shape));
          EXPECT_TRUE(y.is_meta());
          EXPECT_EQ(sent() - before, redistribute_bytes(before_shape, 4, from, to, t));
          before = sent();
          y.backward(at::empty(after_shape, at::TensorOptions(at::kMeta).dtype(at::kFloat)));
          EXPECT_EQ(x.grad().sizes(), at::IntArrayRef(before_shape));
          EXPECT_EQ(sent() - before, redistribute_bytes(after_shape, 4, dual(to), dual(from), t));
        }
      }
    }
  }
}

/// The column "sends" of the table, spelled out.
TEST(Cost, IsTheFormulaOfTheTable) {
  for (const int64_t n : {2, 3, 4}) {
    const Mesh mesh = record_mesh(1, {{"t", static_cast<int>(n)}});
    const auto bytes = [&](const Placement& from, const Placement& to) {
      const auto local = piece_shape({12, 12}, from, mesh);
      return redistribute_bytes(local, 2, from, to, mesh["t"]);
    };
    const Placement s0 = Shard{0};
    const Placement s1 = Shard{1};
    const Placement on_0 = Shard{0, {}, 0, 12};
    const Placement on_1 = Shard{0, {}, 1, 12};
    const int64_t whole = 2 * 144;
    const int64_t part = whole / n;
    for (const auto& [from, to] : std::vector<std::pair<Placement, Placement>>{
             {kR, kI}, {kI, kR}, {kR, s0}, {kI, s0}, {kR, kP}, {kI, kP}, {s0, kP}, {kP, kP}, {s1, s1}}) {
      EXPECT_EQ(bytes(from, to), 0);
    }
    EXPECT_EQ(bytes(s0, kR), (n - 1) * part);
    EXPECT_EQ(bytes(s1, kI), (n - 1) * part);
    EXPECT_EQ(bytes(kP, s0), (n - 1) * whole / n);
    EXPECT_EQ(bytes(s0, s1), (n - 1) * part / n);
    EXPECT_EQ(bytes(kP, kR), 2 * (n - 1) * whole / n);
    EXPECT_EQ(bytes(kP, kI), 2 * (n - 1) * whole / n);
    EXPECT_EQ(bytes(on_1, on_0), whole);  // this rank is 1: it sends everything or nothing
    EXPECT_EQ(bytes(on_0, on_1), 0);
    EXPECT_EQ(bytes(kP, on_0), whole);
    EXPECT_EQ(bytes(kP, on_1), 0);
    EXPECT_EQ(bytes(s0, on_0), part);
    EXPECT_EQ(bytes(on_0, kR), n == 2 ? 0 : whole);  // the last rank of the chain forwards nothing
  }
}

/// Blocks change which rows a coordinate has, not how many bytes it sends, except where only some rows move.
TEST(Cost, OfABlockedShardIsThatOfAShardOfTheSameSizes) {
  for (const int n : {2, 3}) {
    for (int rank = 0; rank < n; ++rank) {
      const Mesh mesh = record_mesh(rank, {{"t", n}});
      const auto bytes = [&](const Placement& from, const Placement& to) {
        return redistribute_bytes(piece_shape({12, 12}, from, mesh), 4, from, to, mesh["t"]);
      };
      for (const Placement& blocked : blocked_for(n, {12, 12})) {
        const Placement plain = Shard{blocked.dim(), blocked.split(12, n)};
        for (const Placement& other : {kR, kI, kP, Placement(Shard{1 - blocked.dim()})}) {
          EXPECT_EQ(bytes(blocked, other), bytes(plain, other)) << blocked.to_string() << " -> " << other.to_string();
          EXPECT_EQ(bytes(other, blocked), bytes(other, plain)) << other.to_string() << " -> " << blocked.to_string();
        }
      }
      // Of [q k v] in blocks of 4 rows, two coordinates have 0 1, 4 5, 8 9 and 2 3, 6 7, 10 11; in halves, 0 to 5 and 6
      // to 11: two rows of each change place, of 12 elements of 4 bytes.
      if (n == 2) {
        EXPECT_EQ(bytes(Shard{.dim = 0, .blocks = 3}, Shard{0}), 2 * 12 * 4);
        EXPECT_EQ(bytes(Shard{0}, Shard{.dim = 0, .blocks = 3}), 2 * 12 * 4);
      }
    }
  }
}

/// A coordinate in the middle of a large world costs no more than its shapes.
TEST(Cost, AnyCoordinateOfALargeWorld) {
  const Mesh mesh = record_mesh(777, {{"dp", 8}, {"pp", 8}, {"tp", 16}});
  EXPECT_EQ(mesh.where(), "rank 777 of 1024 (dp=6 pp=0 tp=9)");
  const Layout rest{{"tp", Shard{0}}, {"dp", Shard{0}}, {"pp", kI}};
  const Box box = local_box({4096, 1024}, rest, mesh);
  EXPECT_EQ(box, (Box{{9 * 256 + 6 * 32, 0}, {32, 1024}}));
  const at::Tensor w = at::empty(box.size, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor full = redistribute(w, rest, mesh["dp"], kR, "w");
  EXPECT_EQ(full.sizes(), at::IntArrayRef({256, 1024}));
  EXPECT_EQ(mesh["dp"].comm().traffic().total_bytes(), 7 * 32 * 1024 * 2);
  EXPECT_EQ(mesh.bytes_sent(), mesh["dp"].comm().traffic().total_bytes());
}

}  // namespace
}  // namespace caravan::testing::cost_test
