"""Print a script for bash or zsh that completes parbench's commands and options.

source <(parbench completions bash)    # in ~/.bashrc
source <(parbench completions zsh)     # in ~/.zshrc
"""

import argparse

# zsh can run bash's completion function.
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit"
SCRIPT = """\
_parbench() {{
    local known="{commands}"
    [ "$COMP_CWORD" -le 1 ] || case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
        *) known="" ;;
    esac
    COMPREPLY=($(compgen -W "$known" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _parbench parbench
"""

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=["bash", "zsh"], help="the shell that will run the script")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    from parbench import __main__ as program

    names = program.names(program.COMMANDS)
    cases = []
    for name in names:
        words, actions = _words(program.parser_of(name, program.load(name)))
        for pattern, known in [*actions, ("*", words)]:
            cases.append(f'        "{name} "{pattern}) known="{" ".join(known)}" ;;')
    script = SCRIPT.format(commands=" ".join(names), cases="\n".join(cases))
    print(f"{ZSH}\n{script}" if options.shell == "zsh" else script, end="")


def _words(parser):
    """Return the words that ``parser`` takes, and those of its actions by name."""
    words, actions = [], []
    for argument in parser._actions:
        words += argument.option_strings
        if isinstance(argument, argparse._SubParsersAction):
            actions = [(name, _words(own)[0]) for name, own in argument.choices.items()]
        words += map(str, argument.choices or [])
    return words, actions
