"""How the command line speaks: help in groups of options, as plain text, and mistakes in options in one line."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_REASONS = {  # what a library says of a value, in our words
    r"input should be a valid integer.*": "give a whole number",
    r"input should be a valid number.*": "give a number",
    r"input should be greater than or equal to (\S+)": r"give at least \1",
    r"input should be less than or equal to (\S+)": r"give at most \1",
}


class Command(TyperCommand):
    """Its options are shown under the names of their panels, in the order in which panels first appear."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            usual = "Arguments" if each.param_type_name == "argument" else "Options"
            panel = "Output" if each.name == "help" else getattr(each, "rich_help_panel", None) or usual
            if (record := each.get_help_record(ctx)) is not None:
                panels.setdefault(panel, []).append(plain_record(*record))
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]
        return [piece.upper() if piece.islower() else piece for piece in pieces]


def plain_record(flag: str, text: str) -> tuple[str, str]:
    """An option and its help without the types and limits of Python.

    >>> plain_record("--top <int range>", "number of classes  [default: 1; x>=1]")
    ('--top <int>', 'number of classes (default: 1)')
    """
    flag = flag.replace(" range>", ">").replace("list[str]", "str").replace("list[Path]", "path")
    text = re.sub(r"\s*\[required\]", " (required)" if flag.startswith("-") else "", text)
    text = re.sub(r"\s*\[x>=[\d.]+\]|; x>=[\d.]+(?=\])", "", text)
    text = re.sub(r"\s*\[(default: [^\]]*)\]", r" (\1)", text)
    return flag, text[:1].lower() + text[1:].removesuffix(".") if text.startswith("Show this") else text


class Group(TyperGroup):
    """Mistakes in options are one line, and end with code 2."""

    def main(self, args: Any = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        try:
            code = super().main(args, standalone_mode=False, **more)
        except Exception as error:
            if not standalone_mode or not hasattr(error, "format_message"):  # not a mistake in the options
                raise
            _show_mistake(error)
            code = 2
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _show_mistake(error: Any) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cigl"
    typer.echo(f"error: {mistake(str(error.format_message()))} See `{command} --help`.", err=True)


def mistake(text: str) -> str:
    """
    >>> mistake("Invalid value for '--epochs': Input should be a valid integer, unable to parse string")
    "invalid value for '--epochs': give a whole number."
    >>> mistake("No such command 'trian'. Did you mean 'train'?")
    "no such command 'trian'. Did you mean 'train'?"
    """
    text = " ".join(text.split())
    for reason, ours in _REASONS.items():
        text = re.sub(reason, ours, text, flags=re.IGNORECASE)
    text = text[:1].lower() + text[1:]
    return text if text.endswith(("?", ".")) else f"{text}."


def make_app(**options: Any) -> typer.Typer:
    return typer.Typer(cls=Group, rich_markup_mode=None, no_args_is_help=True, **options)
