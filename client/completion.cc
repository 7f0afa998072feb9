#include "client/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace mp::client {
namespace {

struct Command {
  std::string path;  // "", "get", "get jobs"
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> subcommands;  // with descriptions
};

void Collect(const CLI::App& app, const std::string& path, std::vector<Command>* all) {
  Command command;
  command.path = path;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    command.words.push_back(sub->get_name());
    command.subcommands.emplace_back(sub->get_name(), sub->get_description());
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) command.words.push_back("--" + name);
    for (const std::string& name : option->get_snames()) command.words.push_back("-" + name);
  }
  all->push_back(command);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Collect(*sub, path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()), all);
  }
}

// Commands after which a job's name may stand.
constexpr char kTakesJob[] = "describe|watch|logs|metrics|cancel|get job|describe job";

std::string Bash(const std::vector<Command>& commands) {
  std::string cases;
  for (const Command& command : commands)
    absl::StrAppend(&cases, "    \"", command.path, "\") words=\"", absl::StrJoin(command.words, " "), "\" ;;\n");
  return absl::StrCat(R"sh(# bash completion for mpctl: source <(mpctl completion bash)
_mpctl() {
  local current=${COMP_WORDS[COMP_CWORD]} path= words= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in -*) ;; *) path="$path${path:+ }$word" ;; esac
  done
  while :; do
    case "$path" in
)sh",
                      cases, R"sh(    esac
    [ -n "$words" ] || [ -z "$path" ] && break
    case "$path" in *\ *) path=${path% *} ;; *) path= ;; esac
  done
  case "$path" in
    )sh",
                      kTakesJob, R"sh()
      words="$words $(mpctl get jobs -o name 2>/dev/null | sed 's#^job/##')" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _mpctl mpctl
)sh");
}

std::string Fish(const std::vector<Command>& commands) {
  std::string script = "# fish completion for mpctl: mpctl completion fish | source\n";
  for (const Command& command : commands) {
    for (const auto& [name, description] : command.subcommands) {
      const std::string condition =
          command.path.empty() ? "__fish_use_subcommand" : absl::StrCat("__fish_seen_subcommand_from ", command.path);
      absl::StrAppend(&script, "complete -c mpctl -f -n '", condition, "' -a ", name, " -d '", description, "'\n");
    }
    if (command.path.find(' ') != std::string::npos) continue;
    for (const std::string& word : command.words) {
      if (!word.starts_with("--")) continue;
      const std::string condition =
          command.path.empty() ? "" : absl::StrCat(" -n '__fish_seen_subcommand_from ", command.path, "'");
      absl::StrAppend(&script, "complete -c mpctl", condition, " -l ", word.substr(2), "\n");
    }
  }
  absl::StrAppend(&script,
                  "complete -c mpctl -f -n '__fish_seen_subcommand_from job describe watch logs metrics cancel' -a "
                  "\"(mpctl get jobs -o name 2>/dev/null | string replace 'job/' '')\"\n");
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  std::vector<Command> commands;
  Collect(app, "", &commands);
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh")
    return absl::StrCat(
        "# zsh completion for mpctl: source <(mpctl completion zsh)\nautoload -U +X compinit && compinit\nautoload -U "
        "+X bashcompinit && bashcompinit\n",
        Bash(commands));
  if (shell == "fish") return Fish(commands);
  return "";
}

}  // namespace mp::client
