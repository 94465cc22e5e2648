"""What every command shares: the app, and errors in one line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

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

Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]


@contextmanager
def errors_in_one_line(how_to_resume: str = "resume it with --resume") -> Iterator[None]:
    """Errors and warnings are one line each; a stopped run ends with the signal's code."""
    from cigl.train.signals import Stopped

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        typer.echo(f"{'warning' if issubclass(category, CiglWarning) else category.__name__}: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except CiglError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except Stopped as stopped:
            typer.echo(f"stopped by {stopped}; what was trained is saved, {how_to_resume}.", err=True)
            raise typer.Exit(stopped.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except OSError as error:
            typer.echo(f"error: {error.strerror or error}: {error.filename or ''}", err=True)
            raise typer.Exit(1) from None


def show_names(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(names))
        return
    width = max(len(name) for name in names)
    for name, about in names.items():
        typer.echo(f"{name:<{width}}  {about}")
