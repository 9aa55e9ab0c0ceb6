#include "caravan/techniques/technique_body.h"

#include <map>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"

namespace caravan {

#define CARAVAN_TECHNIQUE(name) TechniqueBody name##_body();
#define CARAVAN_STEPPING_SCHEDULE(name) TechniqueBody name##_body();
#define CARAVAN_HOOK(name) std::shared_ptr<CommHook> name##_body(const Setting& hook);
#define CARAVAN_SPLIT(name) Plan name##_body(const Splitting& to, const Setting& split);
#define CARAVAN_TILING(name) \
  void name##_body(Strategy& strategy, Module& model, const Mesh& mesh, const Setting& setting);
#define CARAVAN_AROUND(name) void name##_body(Strategy& strategy, Module& model, const Setting& setting);
#include "caravan/registry/entries.def"

namespace {

using HookBody = std::function<std::shared_ptr<CommHook>(const Setting&)>;
using SplitBody = std::function<Plan(const Splitting&, const Setting&)>;

/// Null if the entry has none.
template <class Body>
const Body* find_body(const std::map<std::string, Body>& bodies, const Setting& setting) {
  const auto found = bodies.find(setting.entry().body);
  return found == bodies.end() ? nullptr : &found->second;
}

/// Throws if the entry has none.
template <class Body>
const Body& require_body(const std::map<std::string, Body>& bodies, const Setting& setting) {
  if (const Body* body = find_body(bodies, setting)) return *body;
  throw InternalError({"registry", setting.full_name(), "has no body", "", "add its line to registry/entries.def"});
}

}  // namespace

const TechniqueBody& body_of(const Setting& technique) {
  static const std::map<std::string, TechniqueBody> bodies{
#define CARAVAN_TECHNIQUE(name) {#name, name##_body()},
#define CARAVAN_STEPPING_SCHEDULE(name) {#name, name##_body()},
#include "caravan/registry/entries.def"
  };
  static const TechniqueBody none;
  const TechniqueBody* body = find_body(bodies, technique);
  return body == nullptr ? none : *body;
}

std::shared_ptr<CommHook> make_hook(const Setting& hook) {
  static const std::map<std::string, HookBody> bodies{
#define CARAVAN_HOOK(name) {#name, name##_body},
#include "caravan/registry/entries.def"
  };
  return require_body(bodies, hook)(hook);
}

Plan plan_of(const Setting& split, const Splitting& to) {
  static const std::map<std::string, SplitBody> bodies{
#define CARAVAN_SPLIT(name) {#name, name##_body},
#include "caravan/registry/entries.def"
  };
  return require_body(bodies, split)(to, split);
}

void add_tiles(const Setting& setting, Strategy& strategy, Module& model, const Mesh& mesh) {
  using Body = std::function<void(Strategy&, Module&, const Mesh&, const Setting&)>;
  static const std::map<std::string, Body> bodies{
#define CARAVAN_TILING(name) {#name, name##_body},
#include "caravan/registry/entries.def"
  };
  if (const Body* body = find_body(bodies, setting)) (*body)(strategy, model, mesh, setting);
}

void add_around(const Setting& setting, Strategy& strategy, Module& model) {
  using Body = std::function<void(Strategy&, Module&, const Setting&)>;
  static const std::map<std::string, Body> bodies{
#define CARAVAN_AROUND(name) {#name, name##_body},
#include "caravan/registry/entries.def"
  };
  if (const Body* body = find_body(bodies, setting)) (*body)(strategy, model, setting);
}

FsdpOptions fsdp_options(const Setting& setting) {
  return {.units = setting.texts("units"),
          .reshard_after_forward = setting.flag("reshard_after_forward"),
          .prefetch = static_cast<int>(setting.whole("prefetch")),
          .accumulate = accumulate_of(setting),
          .share = share_of(setting)};
}

Share share_of(const Setting& setting) {
  const std::string& share = setting.text("share");
  return share == "on" ? Share::on : share == "off" ? Share::off : Share::automatic;
}

Accumulate accumulate_of(const Setting& setting) {
  return setting.text("accumulate") == "full" ? Accumulate::full : Accumulate::sharded;
}

}  // namespace caravan
