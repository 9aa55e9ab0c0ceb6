/// The list of all choices that a recipe makes by name, and how compositions are refused: by traits, never by name.

#include "caravan/registry/registry.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/registry/compose.h"
#include "tests/mesh/refusal.h"
#include "tests/needs.h"

namespace caravan::testing::registry_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Registry, EveryEntryIsComplete) {
  std::set<std::string> bodies;
  for (const Family& family : families()) {
    std::set<std::string> names;
    for (const Entry& entry : entries_of(family.name)) {
      SCOPED_TRACE(std::string(family.name) + " " + entry.name);
      EXPECT_EQ(entry.family, family.name);
      EXPECT_TRUE(names.insert(entry.name).second);
      EXPECT_TRUE(bodies.insert(entry.body).second);
      EXPECT_FALSE(entry.summary.empty());
      for (const SettingKey& key : entry.keys) {
        RecipeValue taken;
        EXPECT_EQ(key.kind.take(key.kind.show(key.initial), taken), "") << key.name;
        EXPECT_EQ(taken, key.initial) << key.name << ": as it is written, it reads back";
      }
    }
  }
}

/// A key that several entries list is the same key; each may begin with a value of its own.
TEST(Registry, EntriesAgreeOnSharedKeys) {
  for (const Family& family : families()) {
    for (const SettingKey& key : keys_of(family.name)) {
      for (const Entry& entry : entries_of(family.name)) {
        const auto own = std::ranges::find(entry.keys, key.name, &SettingKey::name);
        if (own == entry.keys.end()) continue;
        EXPECT_EQ(own->help, key.help) << key.name << " of " << entry.name;
        EXPECT_EQ(own->initial.index(), key.initial.index()) << key.name << " of " << entry.name;
        EXPECT_EQ(own->on_resume, key.on_resume) << key.name << " of " << entry.name;
      }
    }
  }
}

TEST(Setting, IsCheckedAtConstruction) {
  needs({"zero3", "zero1", "ddp", "param_server"});
  const Setting setting("data_parallel", "zero3", {{"prefetch", 2}, {"units", "blocks.*.mlp"}});
  EXPECT_EQ(setting.whole("prefetch"), 2);
  EXPECT_THAT(setting.texts("units"), ElementsAre("blocks.*.mlp"));
  EXPECT_EQ(setting.text("share"), "auto") << "not given";
  EXPECT_EQ(setting, Setting("data_parallel", "zero3", {{"units", "blocks.*.mlp"}, {"prefetch", 2}}));
  EXPECT_NE(setting, Setting("data_parallel", "zero3"));
  EXPECT_THAT(refusal<UsageError>([] { Setting("data_parallel", "zero33"); }), HasSubstr("the nearest is 'zero3'"));
  EXPECT_THAT(refusal<UsageError>([] {
                Setting("data_parallel", "zero3", {{"prefetc", 1}});
              }),
              AllOf(HasSubstr("data_parallel.prefetc"), HasSubstr("the nearest is prefetch")));
  EXPECT_THAT(refusal<UsageError>([] {
                Setting("data_parallel", "ddp", {{"prefetch", 1}});
              }),
              HasSubstr("is used with data_parallel.technique = \"zero1\""));
  EXPECT_THAT(refusal<UsageError>([] {
                Setting("data_parallel", "param_server", {{"mode", "async"}, {"prefetch", 2}});
              }),
              HasSubstr("is used with data_parallel.mode = \"sync\" only"));
  EXPECT_THAT(refusal<UsageError>([] {
                Setting("data_parallel", "zero3", {{"prefetch", "one"}});
              }),
              HasSubstr("\"one\" is not a whole number"));
  EXPECT_THROW(Setting("data_paralel"), InternalError);
  EXPECT_THROW(setting.whole("drains"), InternalError);
}

TEST(Setting, NamesTheEntriesThatReadAKey) {
  needs({"zero3", "hsdp", "param_server"});
  EXPECT_EQ(why_idle(Setting("data_parallel", "zero3"), "shard"),
            "is used with data_parallel.technique = \"hsdp\" only");
  EXPECT_EQ(why_idle(Setting("data_parallel", "hsdp"), "shard"), "");
  const Setting async("data_parallel", "param_server", {{"mode", "async"}});
  EXPECT_EQ(why_idle(async, "prefetch"), "is used with data_parallel.mode = \"sync\" only");
  EXPECT_EQ(why_idle(Setting("data_parallel", "param_server"), "prefetch"), "");
}

const Demand kNorm{Trait::clips_norm, "optimizer.clip_norm", "needs the norm", "use 0"};

std::string misfit_of(const std::vector<Setting>& techniques, const std::vector<Demand>& demands = {}) {
  const auto misfit = find_misfit(techniques, demands);
  return misfit ? misfit->key + ": " + misfit->fact + ": " + misfit->action : "";
}

TEST(Composition, IsRefusedByTraits) {
  needs({"ddp", "zero2", "hsdp", "pipedream", "1f1b", "topk", "no_hook"});
  const Setting ddp("data_parallel", "ddp");
  const Setting zero("data_parallel", "zero2");
  const Setting windows("pipeline", "pipedream");
  EXPECT_EQ(misfit_of({ddp, windows}), "");
  EXPECT_THAT(misfit_of({ddp, windows}, {kNorm}),
              AllOf(HasSubstr("optimizer.clip_norm: needs the norm, and the stages of pipedream"),
                    HasSubstr("use 0, or pipeline.schedule = \"1f1b\"")));
  EXPECT_THAT(
      misfit_of({zero, windows}),
      AllOf(HasSubstr("data_parallel.technique: \"zero2\" does not fit: pipedream keeps versions of whole weights"),
            HasSubstr("use data_parallel.technique = \"ddp\"")));
  EXPECT_THAT(misfit_of({zero, Setting("hook", "topk")}),
              AllOf(HasSubstr("\"zero2\" does not fit"),
                    HasSubstr("technique = \"ddp\" or \"hsdp\", or data_parallel.hook = \"none\"")));
}

/// The order in which techniques are given decides nothing but which of two misfits is named.
TEST(Composition, DoesNotDependOnTheOrder) {
  std::vector<Setting> all;
  for (const char* family : {"data_parallel", "hook", "pipeline"}) {
    for (const std::string& name : names_of(family)) all.emplace_back(family, name);
  }
  for (const Setting& first : all) {
    for (const Setting& second : all) {
      if (first.family().name == second.family().name) continue;
      EXPECT_EQ(misfit_of({first, second}, {kNorm}).empty(), misfit_of({second, first}, {kNorm}).empty())
          << first.name() << " " << second.name();
    }
  }
}

/// The error suggests another mode if one helps, otherwise another technique.
TEST(Composition, SuggestsAWorkingChange) {
  needs({"param_server", "ddp", "hsdp", "topk"});
  const Setting async("data_parallel", "param_server", {{"mode", "async"}});
  const Demand lead{Trait::bounded_lead, "data.streaming", "the text is tokenized ahead", "use false"};
  EXPECT_THAT(misfit_of({async}, {lead}), HasSubstr("use false, or data_parallel.mode = \"bounded\""));
  const Demand whole{Trait::whole_gradient, "--dump", "writes the gradient", "leave it out"};
  EXPECT_THAT(misfit_of({async}, {whole}), HasSubstr("leave it out, or data_parallel.mode = \"sync\""));
  EXPECT_THAT(misfit_of({async, Setting("hook", "topk")}),
              AllOf(HasSubstr("data_parallel.technique: \"param_server\" does not fit"),
                    HasSubstr("use data_parallel.technique = \"ddp\" or \"hsdp\"")));
}

/// Of the techniques whose ranks need not compute alike, only PowerSGD depends on the number of threads.
TEST(Composition, PowerSgdAloneNeedsTheSameThreads) {
  needs({"param_server"});
  const Demand same{Trait::threads_may_differ, "comm.threads_per_rank", "differs", "set it"};
  for (const char* family : {"data_parallel", "hook", "pipeline"}) {
    for (const std::string& name : names_of(family)) {
      EXPECT_EQ(misfit_of({Setting(family, name)}, {same}).empty(), name != "powersgd") << name;
    }
  }
  EXPECT_EQ(misfit_of({Setting("data_parallel", "param_server", {{"mode", "async"}})}, {same}), "");
}

/// What says nothing of itself is refused, never assumed to work.
TEST(Composition, UnknownTraitsAreRefused) {
  EXPECT_THAT(Entry{}.traits(Setting("data_parallel")).has, IsEmpty());
  for (const Trait trait : usual_traits()) {
    EXPECT_TRUE(std::ranges::any_of(names_of("data_parallel"), [&](const std::string& name) {
      return Setting("data_parallel", name).has(trait);
    })) << "a trait that no technique has";
  }
}

}  // namespace
}  // namespace caravan::testing::registry_test
