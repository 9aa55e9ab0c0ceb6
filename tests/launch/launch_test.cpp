#include "apps/caravan/launch/launch.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "apps/caravan/launch/launch_report.h"
#include "apps/caravan/launch/oom_kills.h"
#include "caravan/base/error.h"
#include "caravan/base/system/stop_signal.h"
#include "tests/launch/child.h"

namespace caravan::launch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchTest : public ::testing::Test {
 protected:
  static std::vector<std::string> job(int ranks, std::vector<std::string> scripts, const std::string& log_dir = "-") {
    std::vector<std::string> command = {CARAVAN_TEST_JOB, std::to_string(ranks), log_dir, CARAVAN_TEST_RANK};
    command.insert(command.end(), scripts.begin(), scripts.end());
    return command;
  }

  std::string scratch() {
    if (scratch_.empty()) {
      char name[] = "/tmp/caravan_launch_XXXXXX";
      scratch_ = mkdtemp(name);
    }
    return scratch_;
  }
  void TearDown() override {
    if (!scratch_.empty()) std::filesystem::remove_all(scratch_);
  }

 private:
  std::string scratch_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(LaunchTest, RanksFindTheirJobAndTheStore) {
  const std::string logs = scratch() + "/deep/logs";
  Child child(job(3, {"*=env,meet"}, logs), {.environment = {"INHERITED=kept", "TORCHELASTIC_USE_AGENT_STORE=True",
                                                             "RANK=7", "MASTER_ADDR=elsewhere"}});
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_EQ(child.out(),
            "RANK=0\nWORLD_SIZE=3\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=3\nMASTER_ADDR=127.0.0.1\n"
            "TORCHELASTIC_USE_AGENT_STORE=0\nINHERITED=kept\nall 3 met\n");
  EXPECT_THAT(text_of(logs + "/rank_2.log"), AllOf(HasSubstr("RANK=2\n"), HasSubstr("LOCAL_RANK=2\n")));
  EXPECT_EQ(child.err(), "");
  EXPECT_TRUE(child.all_gone(0));
}

/// MASTER_PORT is for a program that serves its own store there, such as torch.distributed.
TEST_F(LaunchTest, RankZeroMayServeMasterPort) {
  Child child(job(2, {"0=serve,meet", "*=meet"}));
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_EQ(child.out(), "serves MASTER_PORT\nall 2 met\n");
}

/// Exit codes of other programs have their own meaning, so Caravan gives no advice on them.
TEST_F(LaunchTest, CodesOfOtherProgramsAreNotExplained) {
  const RankProcess failed{.rank = 1, .wait_status = 3 << 8};
  const RankProcess victim{.rank = 1, .wait_status = SIGKILL, .peak_resident_bytes = int64_t{3} << 30};
  const JobFacts facts{.num_ranks = 2, .is_caravan = false, .memory_ran_out = true};
  EXPECT_EQ(report(failed, {&failed}, facts), "caravan: rank 1 of 2 ended with exit code 3\n");
  EXPECT_THAT(report(victim, {&victim}, facts),
              AllOf(HasSubstr("do: start fewer ranks on this host"), Not(HasSubstr("micro_batch"))));
}

TEST_F(LaunchTest, RankZeroOwnsTheTerminalAndTheOthersHaveLogs) {
  const std::string logs = scratch();
  std::ofstream(logs + "/input") << "a line\n";
  Child child(job(2, {"0=read,say:out,warn:err", "1=read,say:out of one,warn:err of one"}, logs),
              {.input = logs + "/input"});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "read 'a line'\nout\n");
  EXPECT_EQ(child.err(), "err\n");
  EXPECT_EQ(text_of(logs + "/rank_1.log"), "read ''\nout of one\nerr of one\n");
  EXPECT_FALSE(std::filesystem::exists(logs + "/rank_0.log"));
}

/// Only the environment of the ranks has the secret of a job. A client without it is refused, and the job continues.
TEST_F(LaunchTest, AForeignConnectionIsRefusedWithALine) {
  Child child(job(2, {"0=stranger,meet,hang", "1=meet,hang"}));
  child.expect_soon("met");
  EXPECT_THAT(child.out(), AllOf(HasSubstr("the store there requires the secret of its job"), HasSubstr("all 2 met")));
  EXPECT_THAT(child.err(),
              AllOf(HasSubstr("caravan: store: refused 127.0.0.1:"), HasSubstr("does not have the secret")));
  std::string secret;
  for (const pid_t pid : child.living()) {
    const std::string variables = text_of("/proc/" + std::to_string(pid) + "/environ");
    const size_t at = variables.find("CARAVAN_SECRET=");
    if (at != std::string::npos) secret = std::string(variables.c_str() + at + 15);
  }
  EXPECT_EQ(secret.size(), 64U);
  for (const pid_t pid : child.living()) {
    EXPECT_THAT(text_of("/proc/" + std::to_string(pid) + "/cmdline"), Not(HasSubstr(secret)));
  }
  EXPECT_THAT(child.out() + child.err(), Not(HasSubstr(secret)));
  child.signal(SIGKILL);
  child.wait();
}

struct Case {
  std::vector<std::string> scripts;
  int code;
  std::string first_line;
};

class Verdict : public LaunchTest, public ::testing::WithParamInterface<Case> {};

TEST_P(Verdict, NamesTheRankThatFailedFirstByCause) {
  Child child(job(3, GetParam().scripts));
  EXPECT_EQ(child.wait(), GetParam().code) << child.err();
  EXPECT_THAT(child.err(), HasSubstr("caravan: rank " + GetParam().first_line));
  EXPECT_TRUE(child.all_gone(0));
}

INSTANTIATE_TEST_SUITE_P(
    Causes, Verdict,
    ::testing::Values(
        Case{{"2=exit:3", "*=hang"}, 3, "2 of 3 ended with exit code 3 (data or checkpoint)\n"},
        Case{{"1=exit:6", "*=exit:0"}, 6, "1 of 3 ended with exit code 6 (loss or gradient not finite)\n"},
        Case{{"1=kill:11", "*=hang"}, 4, "1 of 3 was killed by signal 11 (SIGSEGV)\n"},
        // The consequence, a lost peer, comes before its cause.
        Case{{"0=meet,exit:4", "1=meet,after:0,exit:5", "*=meet,hang"},
             5,
             "1 of 3 ended with exit code 5 (out of memory, disk space or another resource)\n"},
        Case{{"0=meet,exit:4", "1=meet,exit:4", "2=meet,after:0,kill:6"},
             4,
             "2 of 3 was killed by signal 6 (SIGABRT)\n"},
        // Among equals the earliest.
        Case{{"2=meet,exit:2", "*=meet,after:2,exit:3"}, 2, "2 of 3 ended with exit code 2 (usage or recipe)\n"},
        Case{{"2=meet,exit:4", "*=meet,after:2,exit:4"}, 4, "2 of 3 ended with exit code 4 (lost peer or time-out)\n"},
        Case{{"1=meet,exit:77", "*=meet,after:1,kill:11"}, 77, "1 of 3 ended with exit code 77\n"}));

/// What torch prints after the message of an exception is longer than the end of the log.
TEST_F(LaunchTest, PrintsTheMessageOfATorchExceptionWithoutItsStack) {
  std::string script = "1=warn:  what():  shapes cannot be multiplied,";
  for (int i = 0; i < 40; ++i) script += "warn:frame #" + std::to_string(i) + ": " + std::string(800, 'f') + ",";
  for (const bool is_asked : {false, true}) {
    Child::Options options;
    if (is_asked) options.environment = {"TORCH_SHOW_CPP_STACKTRACES=1"};
    Child child(job(2, {script + "kill:6", "0=hang"}), options);
    EXPECT_EQ(child.wait(), 4);
    EXPECT_THAT(child.err(), HasSubstr("rank 1 of 2 was killed by signal 6 (SIGABRT)"));
    EXPECT_EQ(child.err().find("frame #") != std::string::npos, is_asked) << child.err();
    EXPECT_EQ(child.err().find("shapes cannot be multiplied") != std::string::npos, !is_asked) << child.err();
  }
}

TEST_F(LaunchTest, PrintsTheEndOfTheLogAndWhatTheOthersDid) {
  std::string script = "1=";
  for (int i = 1; i <= 20; ++i) script += (i % 2 == 0 ? "say:line " : "warn:line ") + std::to_string(i) + ",";
  Child child(job(2, {script + "exit:1", "0=sleep:100,exit:4"}));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(),
              AllOf(HasSubstr("rank 1 of 2 ended with exit code 1 (internal error)\n  the end of its log:\n"
                              "  | line 6\n  | line 7\n"),
                    HasSubstr("  | line 20\n"), Not(HasSubstr("| line 5\n")),
                    HasSubstr("caravan: rank 0 ended with exit code 4")));
  Child named(job(2, {"1=exit:1", "0=hang"}, scratch()));
  EXPECT_EQ(named.wait(), 1);
  EXPECT_THAT(named.err(), HasSubstr("its log is empty (" + scratch() + "/rank_1.log)"));
  Child first(job(2, {"0=warn:bad recipe,exit:2", "1=hang"}));
  EXPECT_EQ(first.wait(), 2);
  EXPECT_THAT(first.err(), ::testing::StartsWith("bad recipe\ncaravan: rank 0 of 2 ended with exit code 2"));
}

struct Errors {
  std::vector<std::string> scripts;
  int code;
  std::string err;
};

TEST_F(LaunchTest, PrintsEachErrorOnceFromTheRankThatCausedIt) {
  const std::vector<Errors> cases{
      // A usage error: nothing is added to it.
      {{"0=meet,error:[recipe] x: bad,exit:2", "*=meet,after:0,error:[comm] rank 0 is lost,exit:4"},
       2,
       "[recipe] x: bad\n"},
      {{"*=error:[train] loss: not finite,exit:6"}, 6, "[train] loss: not finite\n"},
      {{"0=meet,after:1,error:[comm] x: bad\n  where: rank 0\n  do: y,exit:2",
        "*=meet,error:[comm] x: bad\n  where: rank 1\n  do: y,exit:2"},
       2,
       "[comm] x: bad\n  where: rank 0\n  do: y\n"},
      // Rank 0 is too slow to end, and is killed.
      {{"0=error:[recipe] x: bad,meet,hang", "*=meet,error:[recipe] x: bad,exit:2"}, 2, "[recipe] x: bad\n"},
      {{"0=meet,error:[comm] rank 1 is lost,exit:4", "1=meet,after:0,error:[data] x: unreadable,exit:3", "2=meet,hang"},
       3,
       "caravan: rank 1 of 3 ended with exit code 3 (data or checkpoint):\n[data] x: unreadable\n"},
      {{"0=meet,error:[all_reduce] a\n  do: b,exit:4", "1=meet,after:0,error:[broadcast] c\n  do: d,exit:4",
        "2=meet,hang"},
       4,
       "[all_reduce] a\n  do: b\ncaravan: rank 1 ended with exit code 4 (lost peer or time-out): [broadcast] c\n"},
      {{"1=meet,kill:9", "0=meet,after:1,error:[barrier] rank 1 is lost,exit:4", "2=meet,hang"},
       4,
       "caravan: rank 1 of 3 was killed by signal 9 (SIGKILL)\n"
       "caravan: rank 0 ended with exit code 4 (lost peer or time-out): [barrier] rank 1 is lost\n"},
      {{"0=kill:13", "*=hang"}, 141, ""},
  };
  for (const Errors& now : cases) {
    Child child(job(3, now.scripts));
    EXPECT_EQ(child.wait(), now.code);
    EXPECT_EQ(child.err(), now.err);
  }
  const std::string logs = scratch();
  Child logged(job(2, {"1=error:[data] x,exit:3", "0=hang"}, logs));
  EXPECT_EQ(logged.wait(), 3);
  EXPECT_EQ(text_of(logs + "/rank_1.log"), "[data] x\n");
}

TEST_F(LaunchTest, ARankKilledForMemoryIsNotALostPeer) {
  RankProcess victim{.rank = 1, .wait_status = SIGKILL, .peak_resident_bytes = int64_t{3} << 30};
  const RankProcess peer{.rank = 0, .wait_status = 4 << 8};
  JobFacts facts{.num_ranks = 2, .memory_ran_out = true};
  EXPECT_EQ(ending_of(victim, facts), Ending::out_of_memory);
  EXPECT_EQ(job_code_of(victim, facts), 5);
  EXPECT_EQ(
      report(victim, {&peer, &victim}, facts),
      "caravan: rank 1 of 2 was killed by the kernel: the host or its control group ran out of memory (the rank "
      "used 3.0 GiB)\n  do: lower train.micro_batch if it is above 1, use a smaller model or context, or give each "
      "rank more memory: start fewer ranks on this host\ncaravan: rank 0 ended with exit code 4 (lost peer or "
      "time-out)\n");
  facts.memory_ran_out = false;
  EXPECT_EQ(job_code_of(victim, facts), 4);
  facts.memory_ran_out = true;
  victim.killed = true;
  EXPECT_EQ(ending_of(victim, facts), Ending::killed);
}

/// The files of the kernel, as in its documentation of control groups.
TEST_F(LaunchTest, OomKillsAreCountedByTheControlGroup) {
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(scratch() + name).parent_path());
    std::ofstream(scratch() + name) << text;
  };
  const auto group_2 = [](int kills) { return "low 0\nmax 7\noom 2\noom_kill " + std::to_string(kills) + "\n"; };
  write("/proc/vmstat", "pgfault 1\noom_kill 5\n");
  write("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n");
  const OomKills host(scratch());
  EXPECT_FALSE(host.happened());
  EXPECT_EQ(host.memory_limit(), 1000 * 1024);
  write("/proc/vmstat", "pgfault 1\noom_kill 6\n");
  EXPECT_TRUE(host.happened()) << "no group: the host's counter";

  write("/proc/self/cgroup", "0::/jobs/one\n");
  write("/sys/fs/cgroup/jobs/one/memory.events", group_2(3));
  write("/sys/fs/cgroup/jobs/one/memory.max", "4096\n");
  const OomKills version_2(scratch());
  write("/proc/vmstat", "oom_kill 9\n");
  EXPECT_FALSE(version_2.happened()) << "a process of another group";
  EXPECT_EQ(version_2.memory_limit(), 4096);
  write("/sys/fs/cgroup/jobs/one/memory.events", group_2(4));
  EXPECT_TRUE(version_2.happened());
  write("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
  EXPECT_EQ(version_2.memory_limit(), 1000 * 1024);

  // In a container the path of the group is not mounted.
  write("/proc/self/cgroup", "5:memory:/docker/0123\n1:cpu:/\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "512000\n");
  const OomKills version_1(scratch());
  EXPECT_FALSE(version_1.happened());
  EXPECT_EQ(version_1.memory_limit(), 512000);
  write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_TRUE(version_1.happened());

  const OomKills nothing(scratch() + "/nowhere");
  EXPECT_FALSE(nothing.happened());
  EXPECT_EQ(nothing.memory_limit(), -1);
}

TEST_F(LaunchTest, ARankThatIsKilledEndsTheJob) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const int victim = ranks - 1;
    Child child(job(ranks, {"*=meet,deaf,spawn:1,hang"}));
    child.expect_soon("met");
    for (const pid_t pid : child.living()) {
      const std::string variables = text_of("/proc/" + std::to_string(pid) + "/environ");
      if (variables.find("LOCAL_RANK=" + std::to_string(victim)) != std::string::npos) kill(pid, SIGKILL);
    }
    EXPECT_EQ(child.wait(), 4);
    EXPECT_THAT(child.err(),
                AllOf(HasSubstr("caravan: rank " + std::to_string(victim) + " of " + std::to_string(ranks)),
                      HasSubstr("signal 9 (SIGKILL)")));
    EXPECT_TRUE(child.all_gone(0));  // nor the children that ranks started
  }
}

/// So many that some end after their rank.
TEST_F(LaunchTest, ChildrenOfRanksEndBeforeTheLauncher) {
  for (const auto& [end, code] : {std::pair("exit:0", 0), std::pair("exit:3", 3)}) {
    Child child(job(2, {"0=spawn:100,meet,exit:0", std::string("1=spawn:100,meet,") + end}));
    EXPECT_EQ(child.wait(), code);
    EXPECT_TRUE(child.all_gone(0));
  }
}

/// The launcher adopts orphans: they must not stay zombies, hide the end of a rank or keep the launcher.
TEST_F(LaunchTest, OrphansAreReapedOrContinue) {
  Child child(job(2, {"0=orphan:0,meet,hang", "1=meet,hang"}));
  child.expect_soon("met");
  int pid = 0;
  ASSERT_EQ(std::sscanf(child.out().c_str(), "orphan %d", &pid), 1);
  for (int i = 0; i < 10'000 && kill(pid, 0) == 0; ++i) usleep(1000);
  EXPECT_NE(kill(pid, 0), 0) << "still a zombie";
  child.signal(SIGKILL);
  child.wait();

  std::string orphans;
  for (int i = 0; i < 30; ++i) orphans += "orphan:" + std::to_string(i % 4) + ",";
  for (int i = 0; i < 4; ++i) {
    Child crowd(job(3, {"1=" + orphans + "meet,exit:3", "*=" + orphans + "meet,hang"}));
    EXPECT_EQ(crowd.wait(), 3);
  }
  Child parent(job(2, {"*=orphan:600000"}));
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_EQ(parent.err(), "");
  EXPECT_EQ(parent.living().size(), 2U);
}

TEST_F(LaunchTest, AStoppedRankIsReported) {
  Child child(job(2, {"0=meet,hang", "1=meet,sleep:300,exit:3"}));
  child.expect_soon("met");
  pid_t stopped = 0;
  for (const pid_t pid : child.living()) {
    if (text_of("/proc/" + std::to_string(pid) + "/environ").find("LOCAL_RANK=1") != std::string::npos) stopped = pid;
  }
  kill(stopped, SIGSTOP);
  child.expect_soon("caravan: rank 1 is stopped (SIGSTOP)");
  EXPECT_THAT(child.err(), HasSubstr("kill -CONT " + std::to_string(stopped)));
  kill(stopped, SIGCONT);
  EXPECT_EQ(child.wait(), 3);
  EXPECT_THAT(child.err(),
              AllOf(HasSubstr("caravan: rank 1 continues\n"), HasSubstr("rank 1 of 2 ended with exit code 3")));
}

TEST_F(LaunchTest, NothingOutlivesAKilledLauncher) {
  Child child(job(4, {"*=deaf,meet,hang"}));
  child.expect_soon("met");
  EXPECT_EQ(child.living().size(), 5U);
  child.signal(SIGKILL);
  EXPECT_EQ(child.wait(), 1000 + SIGKILL);
  EXPECT_TRUE(child.all_gone(2));
}

TEST_F(LaunchTest, ASignalIsOneRequestToStop) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // Saving takes longer than the half second that ranks get after a failure.
    Child child(job(2, {"0=stop:700", "1=stop:0"}));
    child.expect_soon("ready");
    usleep(20'000);  // rank 1 is ready too; if it is not, its default action ends it on request, with the same result
    child.signal(number);
    if (number == SIGINT) {  // as `timeout` does: to its command, and to the group
      child.expect_soon("asking");
      child.signal(number);
    }
    EXPECT_EQ(child.wait(), 130) << child.err();
    EXPECT_THAT(child.out(), HasSubstr("saved"));
    EXPECT_THAT(child.err(),
                AllOf(HasSubstr("asking 2 ranks to stop; a run in progress saves"), Not(HasSubstr("caravan: rank"))));
    EXPECT_TRUE(child.all_gone(0));
  }
}

TEST_F(LaunchTest, TheSecondSignalEndsAtOnce) {
  for (const int second : {SIGINT, SIGTERM}) {
    Child child(job(3, {"*=deaf,meet,hang"}));
    child.expect_soon("met");
    child.signal(SIGINT);
    child.expect_soon("a second signal kills them");
    usleep(400'000);  // signals within a quarter of a second are one request
    child.signal(second);
    EXPECT_EQ(child.wait(), 130);
    EXPECT_TRUE(child.all_gone(0));
  }
}

TEST_F(LaunchTest, AFailureWhileStoppingIsStillAFailure) {
  Child child(job(2, {"0=meet,stop:100", "1=deaf,meet,sleep:300,exit:5"}));
  child.expect_soon("ready");
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 5);
  EXPECT_THAT(child.err(), HasSubstr("rank 1 of 2 ended with exit code 5"));
}

TEST_F(LaunchTest, ATerminalsControlCReachesEachRankOnce) {
  Child child(job(2, {"0=read,count", "1=stop:0"}), {.terminal = true});
  child.expect_soon("counting");
  EXPECT_THAT(child.out(), HasSubstr("read ''"));  // not stopped by the kernel for reading from the terminal
  child.type("\x03");
  child.expect_soon("1 requests");
  EXPECT_EQ(child.wait(), 130);
}

TEST_F(LaunchTest, NohupIsRespected) {
  Child child(job(2, {"*=meet,sleep:300,say:end"}), {.ignores_hang_up = true});
  child.expect_soon("met");
  child.signal(SIGHUP);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.out(), HasSubstr("end"));
}

TEST_F(LaunchTest, RefusesImpossibleOptions) {
  for (const int ranks : {0, -1}) {
    try {
      launch({.num_ranks = ranks, .program = CARAVAN_TEST_RANK, .arguments = {}, .log_dir = ""});
      FAIL() << ranks << " ranks were accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(std::to_string(ranks) + " ranks cannot be started"), HasSubstr("do: ")));
    }
  }
  std::vector<std::string> command = job(2, {});
  command[3] = "/no/such/program";
  Child missing(command);
  EXPECT_EQ(missing.wait(), 2);
  EXPECT_THAT(missing.err(), AllOf(HasSubstr("/no/such/program"), HasSubstr("No such file")));
  EXPECT_TRUE(missing.all_gone(0));
  Child no_log(job(2, {"*=hang"}, "/proc/no_logs_here"));
  EXPECT_EQ(no_log.wait(), 5);
  EXPECT_THAT(no_log.err(), HasSubstr("/proc/no_logs_here"));
  EXPECT_TRUE(no_log.all_gone(0));
}

TEST(StopSignal, IsAFlagWhileItLives) {
  int received = 0;
  static int* counter = &received;
  const auto outer = [](int) { ++*counter; };
  std::signal(SIGTERM, outer);
  {
    const StopSignal stop;
    EXPECT_THROW(StopSignal another, UsageError);
    EXPECT_FALSE(stop.requested());
    raise(SIGTERM);
    EXPECT_TRUE(stop.requested());
  }
  EXPECT_EQ(received, 0);
  raise(SIGTERM);  // the handler before it is back
  EXPECT_EQ(received, 1);
  std::signal(SIGTERM, SIG_DFL);
  const StopSignal again(StopSignal::Second::is_ignored);
  EXPECT_FALSE(again.requested());
  raise(SIGINT);
  raise(SIGINT);
  EXPECT_TRUE(again.requested());
}

TEST(StopSignalDeathTest, ASecondSignalEndsAtOnce) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        raise(SIGINT);
        raise(SIGTERM);  // the same request
        std::fputs("goes on", stderr);
        usleep(400'000);
        raise(SIGTERM);
      },
      ::testing::ExitedWithCode(130), "goes on");
}

}  // namespace
}  // namespace caravan::launch_test
