#include "tests/redistribute/laws.h"

#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"

namespace caravan::testing {
namespace {

struct AnyLaw : torch::autograd::Function<AnyLaw> {
  struct Undo : torch::CustomClassHolder {
    Undo(MeshAxis axis_, Placement from_, Placement to_)
        : axis(std::move(axis_)), from(std::move(from_)), to(std::move(to_)) {}
    MeshAxis axis;
    Placement from;
    Placement to;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Layout& layout,
                            const MeshAxis& axis, const Placement& to, Placement (*dual)(const Placement&)) {
    context->saved_data["undo"] =
        c10::IValue::make_capsule(c10::make_intrusive<Undo>(axis, dual(to), dual(layout[axis.name()])));
    return redistribute(x, layout, axis, to);  // under no_grad: the bare table
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = context->saved_data["undo"].toCapsule();
    const auto& undo = static_cast<const Undo&>(*holder);
    const at::NoGradGuard no_grad;
    return {redistribute(gradients[0], {{undo.axis.name(), undo.from}}, undo.axis, undo.to), {}, {}, {}, {}};
  }
};

/// One cell in one layout, before and after its run on the ranks.
struct Case {
  Layout layout;
  Placement to;
  Pieces x, g;         // in
  Pieces y, gx, kept;  // out: result, gradient of x, and x afterwards
  std::vector<char> refused;
  std::vector<char> bytes_agree;
};

std::string describe(const Case& each) { return each.layout.to_string() + " -> t=" + each.to.to_string(); }

/// Every second piece has its dims in another order in memory.
at::Tensor maybe_strided(const at::Tensor& x, bool strided) {
  return strided ? x.transpose(0, x.dim() - 1).contiguous().transpose(0, x.dim() - 1) : x;
}

void run_case(const Mesh& mesh, const LawFn& law, Case& each) {
  const int rank = mesh.rank();
  const MeshAxis& axis = mesh["t"];
  const bool strided = each.to.is_partial() != each.layout["t"].is_shard();
  const at::Tensor x = maybe_strided(each.x.local[rank], strided).requires_grad_();
  const auto sent = [&] { return axis.comm().traffic().total_bytes(); };
  const int64_t before = sent();
  at::Tensor y;
  try {
    y = law(x, each.layout, axis, each.to);
  } catch (const LayoutError&) {
    each.refused[rank] = 1;
    return;
  }
  const int64_t between = sent();
  y.backward(maybe_strided(each.g.local[rank], !strided));
  const int64_t after = sent();
  each.y.local[rank] = y.detach();
  each.gx.local[rank] = x.grad();
  each.kept.local[rank] = x.detach();
  const Placement& from = each.layout["t"];
  each.bytes_agree[rank] = between - before == redistribute_bytes(x.sizes().vec(), 8, from, each.to, axis) &&
                           after - between == redistribute_bytes(y.sizes().vec(), 8, dual(each.to), dual(from), axis);
}

int size_of(const Axes& axes, const std::string& name) {
  for (const AxisSize& axis : axes) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

using PlacementsFor = std::function<std::vector<Placement>(int n, const std::vector<int64_t>& rows)>;

std::vector<Case> cases_for(const Axes& axes, const at::Tensor& x, const at::Tensor& g,
                            const std::vector<Placement>& others_, const PlacementsFor& placements_for) {
  std::vector<Case> cases;
  const bool has_other = axes.size() > 1;
  const int n = size_of(axes, "t");
  const std::vector<Placement> others = has_other ? others_ : std::vector<Placement>{Replicate{}};
  for (const Placement& other : others) {
    for (const bool minor : {true, false}) {
      if (!has_other && !minor) continue;
      // The rows that axis t splits: fewer if o is major to it on a dim. If t is major, o must divide what t leaves.
      std::vector<int64_t> found = x.sizes().vec();
      if (other.is_shard()) found[other.dim()] /= size_of(axes, "o");
      std::vector<int64_t> left = minor ? found : x.sizes().vec();
      for (const Placement& from : placements_for(n, left)) {
        if (!minor && from.is_shard() && other.is_shard(from.dim()) && !from.sizes().empty()) continue;
        for (const Placement& to : placements_for(n, found)) {
          std::vector<Layout::Entry> entries{{"t", from}};
          if (has_other) entries.insert(minor ? entries.begin() : entries.end(), {"o", other});
          const Layout layout(entries);
          const Layout result = layout.moved("t", to);
          const size_t seed = 1000 + cases.size();
          cases.push_back({layout, to, from_global(axes, x, layout, seed), from_global(axes, g, result.dual(), seed),
                           no_pieces(axes, result), no_pieces(axes, layout.dual()), no_pieces(axes, layout),
                           std::vector<char>(num_ranks(axes)), std::vector<char>(num_ranks(axes))});
        }
      }
    }
  }
  return cases;
}

/// What is wrong with a case that ran; "" if nothing.
std::string fault_of(const Case& each, const at::Tensor& x, const at::Tensor& g) {
  if (!is_close(try_to_global(each.y), x)) return "forward";
  if (!is_close(try_to_global(each.gx), g)) return "backward";
  const double want = (x * g).sum().item<double>();
  if (std::abs(pairing(each.y, each.g) - want) > 1e-9 || std::abs(pairing(each.x, each.gx) - want) > 1e-9)
    return "pairing";
  for (size_t rank = 0; rank < each.x.local.size(); ++rank) {
    if (!at::equal(each.kept.local[rank], each.x.local[rank])) return "x was written";
    if (!each.bytes_agree[rank]) return "bytes";
  }
  return "";
}

Checked run_cases(std::vector<Case> cases, const Axes& axes, const LawFn& law, const at::Tensor& x,
                  const at::Tensor& g) {
  on_mesh(axes, [&](const Mesh& mesh) {
    for (Case& each : cases) run_case(mesh, law, each);
  });
  Checked result;
  for (const Case& each : cases) {
    if (each.refused == std::vector<char>(each.refused.size(), 1)) {
      ++result.num_refused;
      continue;
    }
    ++result.num_checked;
    const std::string fault = fault_of(each, x, g);
    if (!fault.empty()) result.wrong.push_back(describe(each) + ": " + fault);
  }
  return result;
}

}  // namespace

LawFn library_law() {
  return [](const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to) {
    return redistribute(x, layout, axis, to, "x");
  };
}

LawFn law_with_dual(Placement (*dual)(const Placement&)) {
  return [dual](const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to) {
    return AnyLaw::apply(x, layout, axis, to, dual);
  };
}

std::vector<Placement> blocked_for(int n, const std::vector<int64_t>& rows) {
  std::vector<Placement> placements;
  for (int dim = 0; dim < 2; ++dim) {
    if (rows[dim] % (2 * n) == 0) placements.push_back(Shard{.dim = dim, .blocks = 2});
    for (const int64_t blocks : {int64_t{2}, rows[dim] / 2}) {
      std::vector<int64_t> sizes(n, 0);
      sizes[0] = 1;
      sizes[n - 1] += rows[dim] / blocks - 1;
      placements.push_back(Shard{.dim = dim, .sizes = sizes, .blocks = static_cast<int>(blocks)});
    }
  }
  return placements;
}

std::vector<Placement> placements_for(int n, const std::vector<int64_t>& rows) {
  std::vector<Placement> placements{Replicate{}, Invariant{}, Partial{}};
  for (int dim = 0; dim < static_cast<int>(rows.size()); ++dim) placements.push_back(Shard{dim});
  for (int dim = 0; dim < 2; ++dim) {
    std::vector<int64_t> sizes(n, 0);
    sizes[0] = n > 1 ? 1 : 0;
    sizes[n / 2] += n > 3 ? 2 : 0;
    sizes[n - 1 - (n > 2)] += rows[dim] - sizes[0] - (n > 3 ? 2 : 0);
    placements.push_back(Shard{dim, sizes});
  }
  placements.push_back(Shard{0, {}, n > 1 ? 1 : 0, rows[0]});
  const int last = static_cast<int>(rows.size()) - 1;
  placements.push_back(Shard{last, {}, n - 1, rows[last]});
  return placements;
}

Checked check_cells(const Axes& axes, const LawFn& law) {
  const int64_t size = axes.size() > 1 ? num_ranks(axes) : 2 * num_ranks(axes);
  const at::Tensor x = random_tensor({size, size, size}, 1);
  const at::Tensor g = random_tensor({size, size, size}, 2);
  const std::vector<Placement> others{Replicate{}, Invariant{}, Partial{}, Shard{0}, Shard{1}, Shard{2}};
  return run_cases(cases_for(axes, x, g, others, placements_for), axes, law, x, g);
}

Checked check_blocked_cells(const Axes& axes, const LawFn& law) {
  const int n = size_of(axes, "t"), others_size = size_of(axes, "o");
  const int64_t size = others_size == 1 ? 4 * n : 2 * n * others_size;
  const at::Tensor x = random_tensor({size, size, n}, 1);
  const at::Tensor g = random_tensor({size, size, n}, 2);
  const std::vector<Placement> others{Replicate{}, Invariant{}, Partial{},
                                      Shard{0},    Shard{1},    Shard{.dim = 0, .blocks = 2}};
  const auto placements = [](int n, const std::vector<int64_t>& rows) {
    std::vector<Placement> all{Replicate{}, Invariant{}, Partial{}, Shard{0}, Shard{2}, Shard{1, {}, n - 1, rows[1]}};
    std::vector<int64_t> sizes(n, 0);
    sizes[0] = 1;
    sizes[n - 1] += rows[0] - 1;
    all.push_back(Shard{0, sizes});
    for (const Placement& blocked : blocked_for(n, rows)) all.push_back(blocked);
    return all;
  };
  return run_cases(cases_for(axes, x, g, others, placements), axes, law, x, g);
}
Checked check_paths(int n, const LawFn& law) {
  const Axes axes{{"t", n}};
  const at::Tensor x = random_tensor({6, 6}, 4);
  const at::Tensor g = random_tensor({6, 6}, 5);
  struct Path {
    Placement a, b, c;
    Pieces x, g, y;
  };
  std::vector<Path> paths;
  const auto placements = placements_for(n, {6, 6});
  for (const auto& a : placements) {
    for (const auto& b : placements) {
      for (const auto& c : placements) {
        paths.push_back({a, b, c, leaves(from_global(axes, x, {{"t", a}}, paths.size())),
                         from_global(axes, g, {{"t", dual(c)}}, paths.size()), no_pieces(axes, {{"t", c}})});
      }
    }
  }
  on_mesh(axes, [&](const Mesh& mesh) {
    for (Path& path : paths) {
      const at::Tensor middle = law(path.x.local[mesh.rank()], {{"t", path.a}}, mesh["t"], path.b);
      const at::Tensor y = law(middle, {{"t", path.b}}, mesh["t"], path.c);
      y.backward(path.g.local[mesh.rank()]);
      path.y.local[mesh.rank()] = y.detach();
    }
  });
  Checked result;
  for (const Path& path : paths) {
    ++result.num_checked;
    if (is_close(try_to_global(path.y), x) && is_close(try_to_global(gradients(path.x)), g)) continue;
    result.wrong.push_back(path.a.to_string() + " -> " + path.b.to_string() + " -> " + path.c.to_string());
  }
  return result;
}

}  // namespace caravan::testing
