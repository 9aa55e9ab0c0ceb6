#include "apps/caravan/options/option_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/registry/registry.h"

namespace caravan::app {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The possible completions after the words of a command.
std::vector<std::string> choices(const CommandEntry& command) {
  std::vector<std::string> all = command.commands;
  for (const OptionEntry& option : command.options) {
    if (!option.is_word) all.push_back(option.name);
  }
  return all;
}

/// The entries that a recipe chooses by name, as --set takes them: "data_parallel.technique=NAME".
std::vector<std::string> choices_by_name() {
  std::vector<std::string> all;
  for (const Family& family : families()) {
    if (family.key.empty()) continue;
    for (const std::string& name : names_of(family.name)) {
      all.push_back(Setting(family.name).full_name() + "=" + name);
    }
  }
  return all;
}

/// Completes the word after --set: a key, or after its = one of its names. bash makes = a separate word.
constexpr const char* kBashSet = R"(  local at=$COMP_CWORD pair values=
  if [[ $current == = ]]; then at=$((at + 1)) current=; fi
  if [[ ${COMP_WORDS[at-1]} == --set ]]; then
    COMPREPLY=($(compgen -S = -W "$keys" -- "$current"))
    compopt -o nospace 2> /dev/null
    return
  fi
  if [[ $at -gt 3 && ${COMP_WORDS[at-1]} == = && ${COMP_WORDS[at-3]} == --set ]]; then
    for pair in $pairs; do
      if [[ $pair == "${COMP_WORDS[at-2]}="* ]]; then values+=" ${pair#*=}"; fi
    done
    COMPREPLY=($(compgen -W "$values" -- "$current"))
    return
  fi
)";

/// bash and, through bashcompinit, zsh. A word that is not a command leaves the command as it is, so that options
/// complete anywhere; what is not an option may be a file.
std::string bash_script(const std::vector<CommandEntry>& table) {
  std::string cases;
  std::string commands;
  for (const CommandEntry& command : table) {
    const auto may_be_file = [](const OptionEntry& option) { return option.is_word || option.takes_value; };
    cases += fmt::format("    '{}') choices='{}' files={} ;;\n", command.name, fmt::join(choices(command), " "),
                         std::ranges::any_of(command.options, may_be_file) ? 1 : 0);
    if (!command.name.empty()) commands += fmt::format("{}'{}'", commands.empty() ? "" : " | ", command.name);
  }
  std::vector<std::string> keys;
  for (const RecipeKey& key : recipe_keys()) keys.push_back(key.name);
  return fmt::format(R"(_caravan() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command= next word choices= files=0
  local keys='{}'
  local pairs='{}'
{}  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    next="${{command:+$command }}$word"
    case $next in {}) command=$next ;; esac
  done
  case $command in
{}  esac
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
  if [[ $files == 1 && $current != -* ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _caravan caravan ./caravan
)",
                     fmt::join(keys, " "), fmt::join(choices_by_name(), " "), kBashSet, commands, cases);
}

std::string fish_script(const std::vector<CommandEntry>& table) {
  std::string out;
  const auto text = [](const std::string& help) { return replaced(first_line(help), "'", "\\'"); };
  for (const CommandEntry& command : table) {
    const bool is_program = command.name.empty();
    const std::string seen = replaced(command.name, " ", "; and __fish_seen_subcommand_from ");
    const std::string condition = is_program ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + seen;
    for (const std::string& own : command.commands) {
      out += fmt::format("complete -c caravan -n '{}' -a {}\n", condition, own);
    }
    for (const OptionEntry& option : command.options) {
      if (option.is_word) continue;
      const bool is_set = option.name == "--set";
      out += fmt::format("complete -c caravan -n '{}' -l {}{}{} -d '{}'\n", condition, option.name.substr(2),
                         option.takes_value ? " -r" : "",
                         is_set ? fmt::format(" -a '{}'", fmt::join(choices_by_name(), " ")) : "", text(option.help));
    }
  }
  return out;
}

/// Text for roff: dashes that can be copied, no line that begins like a request.
std::string roff(const std::string& text) {
  std::string out = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  out = replaced(std::move(out), "\n.", "\n\\&.");
  out = replaced(std::move(out), "\n'", "\n\\&'");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string synopsis(const CommandEntry& command) {
  std::string out = fmt::format(".B caravan {}\n", roff(command.name));
  bool has_options = false;
  for (const OptionEntry& option : command.options) {
    has_options = has_options || !option.is_word;
    if (option.is_word) out += fmt::format(".RI [ {} ]\n", roff(option.name));
  }
  return out + (has_options ? ".RI [ options ]\n" : "");
}

}  // namespace

std::string completion_script(const std::string& shell, const std::vector<CommandEntry>& table) {
  if (shell == "bash") return bash_script(table);
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + bash_script(table);
  if (shell == "fish") return fish_script(table);
  const std::vector<std::string> shells{"bash", "zsh", "fish"};
  throw UsageError({"completion", shell, "is not one of " + join(shells), "", "use '" + nearest(shell, shells) + "'"});
}

namespace {

/// The entries that a recipe chooses by name, in roff.
std::string choices_of_recipes() {
  std::string out;
  for (const Family& family : families()) {
    const Setting first(family.name);
    out +=
        fmt::format(".SS {}\n{}\n", roff(family.key.empty() ? fmt::format("mesh.{}", family.axis) : first.full_name()),
                    roff(std::string(family.help)));
    for (const Entry& entry : entries_of(family.name)) {
      out += fmt::format(".TP\n.B {}\n{}{}\n", roff(entry.name), roff(entry.summary),
                         entry.paper.empty() ? "" : " (" + roff(entry.paper) + ")");
      std::vector<std::string> keys;
      for (const SettingKey& key : entry.keys) keys.push_back(roff(first.full_name(key.name)));
      if (!keys.empty()) out += ".br\n" + join(keys) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string man_page(const std::vector<CommandEntry>& table) {
  std::string out =
      ".TH CARAVAN 1\n.SH NAME\ncaravan \\- train large models over many processes and machines\n.SH SYNOPSIS\n"
      ".B caravan\n.I command\n.RI [ options ]\n.SH DESCRIPTION\n" +
      roff(table.front().help) + "\n.SH COMMANDS\n";
  for (const CommandEntry& command : table) {
    if (command.name.empty() || (!command.commands.empty() && command.options.empty())) continue;
    out += ".SS " + roff(command.name) + "\n" + synopsis(command) + ".PP\n" + roff(command.help) + "\n";
    for (const OptionEntry& option : command.options) {
      out += fmt::format(".TP\n.B {}\n{}\n", roff(option.name), roff(option.help));
    }
  }
  out += ".SH CHOICES OF A RECIPE\n" + choices_of_recipes();
  out +=
      ".SH EXIT STATUS\n0 done, 1 internal error, 2 usage or recipe, 3 data or checkpoint, 4 lost peer or time\\-out, "
      "5 out of memory, disk space or another resource, 6 loss or gradient not finite, 130 interrupted.\n"
      ".SH ENVIRONMENT\n"
      ".TP\n.B CARAVAN_HOME\nlast folder in which texts and tokenizers are looked up\n"
      ".TP\n.B CARAVAN_CACHE\nfolder of decoded and tokenized texts\n"
      ".TP\n.B CARAVAN_CACHE_BYTES\nthe most bytes in it, such as 20G\n"
      ".TP\n.B CARAVAN_SECRET\nthe key of a job over several hosts\n";
  return out;
}

}  // namespace caravan::app
