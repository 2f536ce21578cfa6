"""The reference of the ``prismm`` command, from its own declarations."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

KINDS = {int: "INTEGER", float: "FLOAT", Path: "PATH", str: "TEXT"}

INTRODUCTION = """# The `prismm` command

Data go to stdout, words to stderr. The exit code is 0 when done, 2 for bad input, 1 for a failure, 130 when
interrupted. `prismm COMMAND --help` prints what stands here.
"""


def page() -> str:
    """Markdown: a section for each subcommand."""
    import typer.main

    from prismm.cli.app import app

    group: Any = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *(section(name, command) for name, command in group.commands.items())])


def section(name: str, command: Any) -> str:
    """Usage, what it does, arguments and options."""
    arguments = [x for x in command.params if x.param_type_name == "argument"]
    options = [x for x in command.params if x.param_type_name == "option" and not getattr(x, "hidden", False)]
    usage = " ".join(["prismm", name, *(["[OPTIONS]"] if options else []), *map(shown, arguments)])
    lines = [f"## {name}", "", "```text", usage, "```", "", prose(command.help or ""), ""]
    if arguments:
        lines += table("argument", [(code(shown(x)), text_of(x)) for x in arguments])
    if options:
        lines += table("option", [(code(named(x)), text_of(x)) for x in options])
    return "\n".join(lines)


def shown(argument: Any) -> str:
    """An argument as the usage has it."""
    text = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text.strip('[]')}]"


def named(option: Any) -> str:
    """All names of an option, and what it takes."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    return f"{names} {option.metavar or kind_of(option)}"


def kind_of(option: Any) -> str:
    """What an option takes: typer before 0.20 has click's types, later ones the annotation itself."""
    if (kind := getattr(option, "type", None)) is not None:
        return "|".join(map(str, getattr(kind, "choices", ()))) or kind.name.upper()
    annotation = option.type_descriptor.annotation
    choices = [
        str(getattr(x, "value", x)) for x in get_args(annotation) or getattr(annotation, "__members__", {}).values()
    ]
    return "|".join(choices) or KINDS.get(annotation, "TEXT")


def text_of(parameter: Any) -> str:
    """What is said of a parameter, with its default."""
    text = prose(getattr(parameter, "help", None) or "")
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    said = f" Default: {code(str(default))}." if plain and "default" not in text.lower() else ""
    return " ".join(f"{text}{said}".split())


def prose(text: str) -> str:
    """Help text as Markdown: options as code, nothing taken for markup."""
    text = inspect.cleandoc(text).replace("\b\n", "").replace("|", r"\|").replace("<", r"\<").replace("*", r"\*")
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", text.replace("``", "`"))


def code(text: str) -> str:
    """As code, in a table."""
    return f"`{text}`".replace("|", r"\|")


def table(of: str, rows: list[tuple[str, str]]) -> list[str]:
    """A table of names and texts."""
    return [f"| {of} | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows), ""]
