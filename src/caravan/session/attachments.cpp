#include "caravan/session/attachments.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/attached_tensors.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/session/cuts.h"
#include "caravan/session/state_visitors.h"
#include "caravan/session/whole_parameters.h"

namespace caravan {
namespace {

constexpr const char* kRates = "lr";

}  // namespace

at::Tensor savable(const at::Tensor& tensor, const std::string& name) {
  const auto refuse = [&](const std::string& fact, const std::string& action) {
    throw UsageError({"checkpoint", name, fact, "", action});
  };
  if (!tensor.defined()) refuse("is an undefined tensor", "attach it when it has values");
  if (tensor.layout() != at::kStrided) refuse("is not a dense tensor", "attach a dense one, or the parts of it");
  if (!tensor.device().is_cpu()) refuse("rests on " + tensor.device().str(), "attach a copy on the host");
  try {
    to_dtype(tensor.scalar_type());
  } catch (const UsageError&) {
    refuse(fmt::format("has the dtype {}, which checkpoints do not have", c10::toString(tensor.scalar_type())),
           "convert it to one of fp32, fp64, bf16, fp16, int64, int32, uint8 and bool");
  }
  return tensor.detach().contiguous();
}

namespace {

/// What ranks compare: a number as such, anything else by its hash.
std::string value_text(const at::Tensor& tensor) {
  if (tensor.numel() == 1 && tensor.scalar_type() == at::kDouble) return fmt::format("{}", tensor.item<double>());
  if (tensor.numel() == 1 && tensor.scalar_type() == at::kLong) return fmt::format("{}", tensor.item<int64_t>());
  const std::string shape = "[" + join(tensor.sizes()) + "]";
  const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes()));
  return fmt::format("{} {} {}", c10::toString(tensor.scalar_type()), shape, content_hash(bytes).hex());
}

Box whole_box(const at::Tensor& tensor) {
  return {std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor.sizes().vec()};
}

/// "sampler, the nearest to which is samplr".
std::string with_nearest(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    const std::string found = nearest(name, others);
    all.push_back(found.empty() ? "'" + name + "'" : fmt::format("'{}' (the nearest is '{}')", name, found));
  }
  return some_of(all, 5);
}

std::vector<std::string> without(const std::vector<std::string>& all, const std::vector<std::string>& others) {
  std::vector<std::string> left;
  for (const std::string& name : all) {
    if (std::ranges::find(others, name) == others.end()) left.push_back(name);
  }
  return left;
}

}  // namespace

Attachments::Attachments(Engine& engine, const WholeParameters* whole)
    : engine_(engine), whole_(whole), parameters_(updated_parameters(engine, whole)) {}

void Attachments::add(const std::string& name, Kept kept) {
  check_attached_name(name, "");
  if (std::ranges::find(entries_, name, &Entry::name) != entries_.end()) {
    throw UsageError({"attach", name, "is the name of something that is attached already", "", "give it another name"});
  }
  const auto cut = kept.is_elementwise_ == false ? first_cut(engine_) : std::nullopt;
  const bool needs_all = kept.kind_ != Kept::Kind::optimizer;  // what it keeps is one of all parameters together
  if (cut && (needs_all || whole_ == nullptr)) {
    throw UsageError({"attach", name,
                      fmt::format("needs {}, and {} is sharded over {} by {}",
                                  needs_all ? "all whole parameters at once" : "whole parameters", cut->name, cut->axis,
                                  engine_.strategy().name),
                      engine_.mesh().where(),
                      needs_all ? "use ddp(), which keeps parameters whole on every rank"
                                : "make it from whole_parameters() and step it in update_whole(), or use ddp()"});
  }
  if (kept.kind_ == Kept::Kind::optimizer) check_states_whole(name, kept);
  entries_.push_back({name, std::move(kept)});
}

std::string Attachments::risk_of(const std::string& name, const Kept& kept) const {
  if (kept.kind_ != Kept::Kind::optimizer || kept.is_elementwise_ || whole_ != nullptr) return "";
  const auto cut = first_cut(engine_);
  if (!cut) return "";
  return fmt::format(
      "optimizer '{}' does not say whether it updates every element by itself alone, and {} is sharded over "
      "{} by {}: if it does not, it is another optimizer here. do: make it from whole_parameters() and step it in "
      "update_whole(), or add `static constexpr bool is_elementwise = true` to its class",
      name, cut->name, cut->axis, engine_.strategy().name);
}

bool Attachments::has_rates() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.kept.rates_ != nullptr; });
}

void Attachments::take_entry(size_t entry, std::list<StateCollector>& collectors) {
  const auto& [name, kept] = entries_[entry];
  const std::string prefix = kAttachedTensors + name;
  if (kept.kind_ != Kept::Kind::optimizer) {
    pieces_.push_back({prefix, entry, savable(kept.save_(), name)});
    return;
  }
  StateCollector& collector = collectors.emplace_back(parameters_, name, entry);
  kept.visit_(collector);
  for (const auto& [number, value] : collector.numbers) {
    pieces_.push_back({fmt::format("{}.number.{}", prefix, number), entry, value});
  }
  if (kept.rates_)
    pieces_.push_back({fmt::format("{}.{}", prefix, kRates), entry, at::tensor(kept.rates_(), at::kDouble)});
}

void Attachments::take(bool compares) {
  const at::NoGradGuard no_grad;
  Communicator& world = engine_.mesh().world();
  pieces_.clear();
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  check_same_on_all_ranks(world, "checkpoint", {{"attached", join(names)}});
  std::list<StateCollector> collectors;
  all_or_none(
      world,
      [&] {
        for (size_t entry = 0; entry < entries_.size(); ++entry) take_entry(entry, collectors);
      },
      "attached");
  std::vector<SharedFact> facts;
  for (const Piece& piece : pieces_) {
    const Kept& kept = entries_[piece.entry].kept;
    if (kept.kind_ == Kept::Kind::generator) continue;
    const std::string name = piece.name.substr(std::string_view(kAttachedTensors).size());
    if (!kept.shown_) facts.push_back({name, value_text(piece.tensor)});
    for (const std::string& part : kept.shown_ ? kept.shown_() : std::vector<std::string>{}) {
      facts.push_back({name, part});
    }
  }
  if (compares) check_same_on_all_ranks(world, "checkpoint", facts);
  for (Piece& piece : pieces_) {
    if (entries_[piece.entry].kept.kind_ == Kept::Kind::generator) gather_generator(piece);
  }
  states_.clear();
  if (collectors.empty()) return;
  add_moments(collectors);
  take_states(collectors);
}

/// The states of all ranks, or one if they are equal.
void Attachments::gather_generator(Piece& piece) {
  Communicator& world = engine_.mesh().world();
  const at::Tensor own = piece.tensor.contiguous();
  piece.tensor = at::empty({world.size(), own.numel()}, at::kByte);
  all_gather_async(world, own.view({-1}), piece.tensor.view({-1}), {}, "generators").wait();
  for (int64_t rank = 1; rank < piece.tensor.size(0); ++rank) {
    if (!piece.tensor[rank].equal(piece.tensor[0])) return;
  }
  piece.tensor = piece.tensor.narrow(0, 0, 1).contiguous();
}

void Attachments::add_moments(const std::list<StateCollector>& collectors) {
  Communicator& world = engine_.mesh().world();
  for (const StateCollector& collector : collectors) {
    std::vector<std::string> own;
    for (const auto& [name, unused] : collector.moments) own.push_back(name);
    std::set<std::string> names;  // stages may have parameters of different kinds
    for (const std::string& text : gather_texts(world, join(own, "\n"), "moments")) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) names.insert(line);
    }
    for (const std::string& name : names) {
      const auto found = collector.moments.find(name);
      std::vector<int64_t> is_kept(parameters_.size(), 0);
      if (found != collector.moments.end()) {
        for (const auto& [index, unused] : found->second) is_kept[index] = 1;
      }
      take_maxima(world, is_kept, "moments");
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (is_kept[i] == 0) continue;
        at::Tensor tensor;
        if (found != collector.moments.end() && found->second.contains(i)) tensor = found->second.at(i);
        tensor = tensor.defined()
                     ? tensor.detach().contiguous()
                     : at::zeros_like(parameters_[i]->sharded().detach(), {}, at::MemoryFormat::Contiguous);
        pieces_.push_back({fmt::format("{}{}.moment.{}.{}", kAttachedTensors, entries_[collector.entry].name, name,
                                       parameters_[i]->whole_name()),
                           collector.entry, tensor, parameters_[i]});
      }
    }
  }
}

void Attachments::expect(const Manifest& manifest) {
  const size_t start = std::string_view(kAttachedTensors).size();
  std::vector<std::string> saved, own;  // names that were attached, and parts of them
  std::vector<std::string> saved_parts, own_parts;
  for (const auto& [name, unused] : manifest.tensors) {
    if (!name.starts_with(kAttachedTensors)) continue;
    const std::string whole = name.substr(start, name.find('.', start) - start);
    if (std::ranges::find(saved, whole) == saved.end()) saved.push_back(whole);
    saved_parts.push_back(part_as_state(name.substr(start)));
  }
  for (const Entry& entry : entries_) own.push_back(entry.name);
  std::erase_if(pieces_, [](const Piece& piece) { return piece.is_state; });
  for (const Piece& piece : pieces_) own_parts.push_back(piece.name.substr(start));
  for (const State& state : states_) own_parts.push_back(name_of(state, kState).substr(start));
  const auto check = [&](const std::vector<std::string>& has, const std::vector<std::string>& wanted,
                         const std::string& what) {
    const auto missing = without(wanted, has), extra = without(has, wanted);
    std::vector<std::string> facts;
    if (!missing.empty()) facts.push_back("it lacks " + with_nearest(missing, has));
    if (!extra.empty()) facts.push_back("the program has not attached " + with_nearest(extra, wanted));
    if (facts.empty()) return;
    throw DataError({"checkpoint", what, join(facts, "; "), engine_.mesh().where(),
                     "attach() before load() what the program that saved it had attached, under the same names"});
  };
  check(saved, own, "attached");
  check(saved_parts, own_parts, "attached optimizer");
  for (Piece& piece : pieces_) expect_piece(piece, manifest);
  expect_states(manifest);
}

void Attachments::expect_piece(Piece& piece, const Manifest& manifest) const {
  if (piece.parameter != nullptr) {
    piece.tensor = at::empty_like(piece.tensor);
    return;
  }
  const ManifestTensor& saved = manifest.tensors.at(piece.name);
  const Kept::Kind kind = entries_[piece.entry].kept.kind_;
  const std::string dtype(safetensors_name(to_dtype(piece.tensor.scalar_type())));
  const bool has_any_length = kind == Kept::Kind::text && saved.shape.size() == 1;
  const bool is_generator =
      kind == Kept::Kind::generator && saved.shape.size() == 2 && saved.shape[1] == piece.tensor.size(1);
  const bool fits = has_any_length || is_generator || saved.shape == piece.tensor.sizes();
  if (!fits || saved.dtype != dtype) {
    const std::string name = piece.name.substr(std::string_view(kAttachedTensors).size());
    throw DataError({"checkpoint", name,
                     fmt::format("was saved as {} [{}], and is {} [{}] in the program", saved.dtype, join(saved.shape),
                                 dtype, join(piece.tensor.sizes())),
                     "",
                     kind == Kept::Kind::optimizer && name.ends_with(std::string(".") + kRates)
                         ? "give the optimizer as many groups of parameters as it had"
                         : "attach what was saved under this name"});
  }
  piece.tensor = at::empty(saved.shape, piece.tensor.options());
}

void Attachments::load_values(CheckpointReader& reader) {
  const int rank = engine_.mesh().rank();
  for (Piece& piece : pieces_) {
    const auto& [name, kept] = entries_[piece.entry];
    if (kept.kind_ == Kept::Kind::optimizer) continue;
    if (piece.tensor.numel() > 0) reader.read(piece.name, whole_box(piece.tensor), piece.tensor);
    at::Tensor saved = piece.tensor;
    if (kept.kind_ == Kept::Kind::generator) {
      if (saved.size(0) > 1 && rank >= saved.size(0)) continue;  // its rank did not exist
      saved = saved[saved.size(0) == 1 ? 0 : rank].clone();      // torch reads elsewhere if it has a storage offset
    }
    const auto refuse = [&, of = name](const std::string& what) {
      throw DataError({"checkpoint", of, "cannot be loaded: " + what, engine_.mesh().where(),
                       "attach what was saved under this name"});
    };
    try {
      kept.load_(saved);
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      refuse(error.what_without_backtrace());
    } catch (const std::exception& error) {
      refuse(error.what());
    }
  }
}

void Attachments::load_optimizers() {
  const at::NoGradGuard no_grad;
  for (const auto& [name, kept] : entries_) {
    if (kept.kind_ != Kept::Kind::optimizer) continue;
    const auto find = [&, of = name](const std::string& part, const Parameter* parameter) -> const at::Tensor& {
      const std::string whole = fmt::format("{}{}.{}", kAttachedTensors, of, part);
      const auto state = std::ranges::find_if(states_, [&](const State& one) { return name_of(one, kState) == whole; });
      if (state != states_.end()) return state->loaded;
      const auto found = std::ranges::find_if(
          pieces_, [&](const Piece& piece) { return piece.name == whole && piece.parameter == parameter; });
      if (found != pieces_.end()) return found->tensor;
      throw UsageError({"checkpoint", of + ", " + part, "was not visited before the load", "",
                        "let visit_state() name the same state in every call"});
    };
    StateLoader loader(parameters_, name, find);
    kept.visit_(loader);
    if (!kept.rates_) continue;
    const at::Tensor rates = find(kRates, nullptr);
    kept.set_rates_({rates.const_data_ptr<double>(), rates.const_data_ptr<double>() + rates.numel()});
  }
}

void Attachments::walk(const Visit& visit) {
  for (const Piece& piece : pieces_) {
    const bool is_value = piece.parameter == nullptr;
    visit({.kind = is_value ? StatePiece::Kind::count : StatePiece::Kind::moment,
           .name = piece.name,
           .tensor = piece.tensor,
           .parameter = piece.parameter,
           .spread = is_value ? StatePiece::Spread::everywhere : StatePiece::Spread::like_parameter});
  }
}

}  // namespace caravan
