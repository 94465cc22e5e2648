"""What every command shares: the app, phases on the terminal, errors in one line, and what to do next."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

import cigl
from cigl.cli.format import Command, make_app
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.interrupts import MESSAGE, ends_at_once
from cigl.common.phases import phase

app = make_app(
    name="cigl",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train neural networks that are sparse and honest about their confidence.",
    epilog="Start with: cigl train   (half a minute, nothing to download)",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cigl {cigl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def argument(about: str, **more: Any) -> Any:
    return typer.Argument(help=about, show_default=False, **more)


def option(about: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """An option whose help says what happens without it, where that needs to be said."""
    return typer.Option(*names, help=about, show_default=False, rich_help_panel=panel, **more)


OUTPUT = "Output"  # the group of options that every command has
Json = Annotated[bool, option("print JSON, for scripts", OUTPUT, "--json")]
Explain = Annotated[bool, option("explain the numbers in the table", OUTPUT, "--explain")]

All = Annotated[bool, option("show every metric, not just the four to look at first", OUTPUT, "--all")]


@contextmanager
def importing() -> Iterator[None]:
    """Around imports of what needs torch, which take seconds: a phase that Ctrl-C ends cleanly."""
    with phase("loading PyTorch"), ends_at_once():
        yield


@contextmanager
def errors_in_one_line(
    how_to_resume: Callable[[], str] = lambda: "",
    several: bool = False,
    argument: Callable[[str, str | None], str] | None = None,
) -> Iterator[None]:
    """Errors and warnings are one line each; a stopped run ends with the signal's code.

    ``several``: torchrun may run several processes of this command. One of them reports. ``argument``
    shows an argument of the library, and the value that it is to have, as the command takes it.
    """
    from cigl.train.ranks.started import RanksEnded, is_first, started, wait_for_the_first
    from cigl.train.signals import Stopped

    def report(text: str, on: Literal["node", "all"] = "node") -> None:
        if is_first(on):
            print(text, file=sys.stderr, flush=True)  # where a progress bar may have put itself in between

    def said(about: object) -> str:
        return about.shown(argument) if argument and isinstance(about, (CiglError, CiglWarning)) else str(about)

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        kind = "warning" if issubclass(category, CiglWarning) else category.__name__
        report(f"{kind}: {said(message)}", "all")

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            if started().size > 1 and not several:
                raise CiglError("only `cigl train` runs in several processes: run this command without torchrun.")
            yield
        except RanksEnded as ended:
            if str(ended):
                typer.echo(f"error: {said(ended)}", err=True)
            raise typer.Exit(ended.exit_code) from None
        except CiglError as error:
            report(f"error: {said(error)}")
            wait_for_the_first()
            raise typer.Exit(2) from None
        except Stopped as stopped:
            report(f"stopped by {stopped}; {how_to_resume() or 'nothing was changed.'}", "all")
            raise typer.Exit(stopped.exit_code) from None
        except KeyboardInterrupt:
            report(" ".join([MESSAGE, how_to_resume()]).strip(), "all")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be flushed
            raise typer.Exit(141) from None
        except OSError as error:
            report(f"error: {error.strerror or error}: {error.filename or ''}")
            wait_for_the_first()
            raise typer.Exit(1) from None


def command(app: typer.Typer, name: str | None = None, how_to_resume: str = "") -> Callable[[Any], Any]:
    """Adds a function to an app as a command, whose errors are one line each."""

    def add(function: Any) -> Any:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            with errors_in_one_line(lambda: how_to_resume):
                function(*arguments, **options)

        return app.command(name, cls=Command)(run)

    return add


def name_values(flag: str, texts: list[str]) -> dict[str, Any]:
    """What an option says that is given as NAME=VALUE, with values as in a YAML file.

    >>> name_values("--option", ["cycle_drop=0.3", "keep_snapshots=true"])
    {'cycle_drop': 0.3, 'keep_snapshots': True}
    """
    import yaml

    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value):
            raise CiglError(f"{flag} has {text!r}: give NAME=VALUE.")
        if name in found:
            raise CiglError(f"{flag} has {name} more than once: give it once.")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise CiglError(f"{flag} has {text}: give values as in a YAML file.") from None
    return found


def show_names(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(names))
    else:
        show_columns(list(names.items()))


def show_columns(rows: list[tuple[str, ...]], indent: str = "", err: bool = False) -> None:
    """Texts below each other; the last may be of any length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        typer.echo((indent + "  ".join([*cells, row[-1]])).rstrip(), err=err)


def show_next(*commands: tuple[str, str], err: bool = False) -> None:
    """The commands that one may want next, each with what it does; ``err`` where the output is data, to be piped."""
    if commands:
        typer.echo("\nnext:", err=err)
        show_columns(list(commands), indent="  ", err=err)
