"""What every command shares: the app, and errors in one line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

import cigl
from cigl.errors import CiglError, CiglWarning

app = typer.Typer(
    name="cigl",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    pass


Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]


@contextmanager
def errors_in_one_line(how_to_resume: str = "resume it with --resume", several: bool = False) -> Iterator[None]:
    """Errors and warnings are one line each; a stopped run ends with the signal's code.

    ``several``: torchrun may run several processes of this command. One of them reports.
    """
    from cigl.train.signals import Stopped
    from cigl.train.started import RanksEnded, is_first, started, wait_for_the_first

    def report(text: str, on: Literal["node", "all"] = "node") -> None:
        if is_first(on):
            typer.echo(text, err=True)

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        report(f"{'warning' if issubclass(category, CiglWarning) else category.__name__}: {message}", "all")

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            if started().size > 1 and not several:
                raise CiglError("only `cigl train` runs in several processes: run this command without torchrun.")
            yield
        except RanksEnded as ended:
            if str(ended):
                typer.echo(f"error: {ended}", err=True)
            raise typer.Exit(ended.exit_code) from None
        except CiglError as error:
            report(f"error: {error}")
            wait_for_the_first()
            raise typer.Exit(2) from None
        except Stopped as stopped:
            report(f"stopped by {stopped}; what was trained is saved, {how_to_resume}.", "all")
            raise typer.Exit(stopped.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except OSError as error:
            report(f"error: {error.strerror or error}: {error.filename or ''}")
            wait_for_the_first()
            raise typer.Exit(1) from None


def show_names(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(names))
        return
    width = max(len(name) for name in names)
    for name, about in names.items():
        typer.echo(f"{name:<{width}}  {about}")
