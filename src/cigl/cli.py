"""The command line. torch is imported by the commands that need it, never for --help."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from cigl.errors import CiglError, CiglWarning
from cigl.train.config import PRESETS, Config, key_type, resolve

app = typer.Typer(
    name="cigl", rich_markup_mode=None, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Train neural networks that are sparse and honest about their confidence.",
    epilog="Start with: cigl train   (half a minute, nothing to download)",
)  # fmt: skip
data_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Fetch and list datasets.")
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]


@contextmanager
def told() -> Iterator[None]:
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
            typer.echo(f"stopped by {stopped}; what was trained is saved, go on with --resume.", err=True)
            raise typer.Exit(stopped.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except OSError as error:
            typer.echo(f"error: {error.strerror or error}: {error.filename or ''}", err=True)
            raise typer.Exit(1) from None


# train


def train_command(**options: Any) -> None:
    """Train a network and report how well calibrated it is.

    Every key can also be given in a YAML file (--config) or come with a preset; flags win over the file, the
    file over the preset. The run folder holds the resolved configuration, metrics, checkpoints, the finished
    model and its report. Kill it whenever you like and go on with --resume.

    Examples:

      cigl train

      cigl train --preset fashion-mnist-mlp --method rigl --sparsity 0.95 --seed 1 --out runs/rigl-95

      cigl train --resume runs/rigl-95
    """
    special = {name: options.pop(name) for name in ("out", "config", "preset", "resume", "json", "quiet", "threads", "checkpoint_minutes")}  # fmt: skip # noqa: E501
    flags = {name: value for name, value in options.items() if value is not None}
    with told():
        if special["resume"] is not None and (flags or special["config"] or special["preset"] or special["out"]):
            raise CiglError("--resume goes on with the run's own configuration: give no other options with it.")
        config = resolve(_lists(flags), special["config"], special["preset"])

        import torch

        from cigl.train.run import resume, train
        from cigl.train.show import progress_bar, show_result

        if special["threads"] is not None:
            if special["threads"] < 1:
                raise CiglError(f"--threads is {special['threads']}: give a whole number, at least 1.")
            torch.set_num_threads(special["threads"])
        quiet = special["quiet"] or special["json"]
        minutes = special["checkpoint_minutes"]
        if not 0 < minutes < float("inf"):
            raise CiglError(f"--checkpoint-minutes is {minutes}: give a number above 0.")
        out = special["resume"] or special["out"] or _free_folder()
        with progress_bar(quiet) as progress:
            if special["resume"] is not None:
                result = resume(out, progress=progress, checkpoint_minutes=minutes)
            else:
                result = train(config, out, progress=progress, checkpoint_minutes=minutes)
        if special["json"]:
            typer.echo(json.dumps({"folder": str(out)} | result))
        else:
            show_result(Path(out), result)


def _lists(flags: dict[str, Any]) -> dict[str, Any]:
    """Comma-separated numbers, as flags have them."""
    for name, value in flags.items():
        if name == "milestones":
            try:
                flags[name] = [float(part) for part in str(value).split(",") if part.strip()]
            except ValueError:
                raise CiglError(f"milestones is {value!r}: give numbers such as 0.5,0.75.") from None
    return flags


def _free_folder() -> Path:
    number = 1
    while (folder := Path("runs") / f"{number:03d}").exists():
        number += 1
    return folder


def _signature() -> inspect.Signature:
    """The options of ``cigl train``: its own, and one for each key of the configuration."""
    own: list[tuple[str, Any, Any, str]] = [
        ("out", Path | None, None, "folder of the run (default: runs/001, 002, ...)"),
        ("config", Path | None, None, "YAML file with any of the keys below"),
        ("preset", str | None, None, "settings by name: " + ", ".join(PRESETS)),
        ("resume", Path | None, None, "go on with the run in this folder"),
        ("checkpoint_minutes", float, 10.0, "save at least this often, besides once per epoch"),
        ("threads", int | None, None, "CPU threads (default: all; one makes runs repeatable to the bit)"),
        ("quiet", bool, False, "no progress bar"),
        ("json", bool, False, "print the result as JSON, for scripts"),
    ]  # fmt: skip
    for each in fields(Config):
        shown = ",".join(f"{v:g}" for v in each.default) if isinstance(each.default, tuple) else each.default
        kind = key_type(each.name)[0]
        kind = kind if kind in (int, float, bool) else str
        own.append((each.name, kind | None, None, _about(each.metadata["help"], shown)))
    parameters = []
    for name, kind, default, about in own:
        flag = f"--{name.replace('_', '-')}"
        flags = [f"{flag}/--no-{name.replace('_', '-')}"] if kind == (bool | None) else [flag]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default,
                annotation=Annotated[kind, typer.Option(*flags, help=about, show_default=False)],
            )
        )  # fmt: skip
    return inspect.Signature(parameters)


def _about(text: str, default: Any) -> str:
    return text if default is None else f"{text} [{str(default).lower() if isinstance(default, bool) else default}]"


train_command.__signature__ = _signature()  # type: ignore[attr-defined]
train_command.__annotations__ = {name: p.annotation for name, p in _signature().parameters.items()}
app.command("train")(train_command)


# evaluate, data, methods, models


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    split: Annotated[str, typer.Option(help="test, validation or train")] = "test",
    temperature: Annotated[bool, typer.Option("--temperature", help="with the run's temperature")] = False,
    mc: Annotated[int | None, typer.Option(help="average over this many draws of the random mask")] = None,
    as_json: Json = False,
) -> None:
    """Calibration of a finished run: table, JSON and reliability diagram.

    Example:

      cigl evaluate runs/001 --temperature
    """
    with told():
        from cigl.train.run import evaluate_run

        found = evaluate_run(run, split=split, temperature=temperature, masks=mc)
        parts = [split, *(["temperature"] if temperature else []), *([f"mc{mc}"] if mc is not None else [])]
        name = run / ("evaluation-" + "-".join(parts))
        found.to_json(name.with_suffix(".json"))
        found.reliability_diagram(name.with_suffix(".svg"))
        if as_json:
            typer.echo(json.dumps({"folder": str(run), "split": split} | found.to_dict()))
        else:
            typer.echo(f"{found}\n\n{name}.json, .npz, .svg")


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The datasets that can be trained on.

    Example:

      cigl data list
    """
    with told():
        import cigl.data

        _show(cigl.data.names(), as_json)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="a name from `cigl data list`")], as_json: Json = False) -> None:
    """Fetch a dataset, check it, and keep it in $CIGL_DATA (default: ~/.cache/cigl).

    Example:

      cigl data get fashion-mnist
    """
    with told():
        import cigl.data

        path = cigl.data.get(name, progress=not as_json and sys.stderr.isatty())
        typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else f"{name} is in {path}")


@app.command()
def methods(as_json: Json = False) -> None:
    """The sparse-training methods, a line each.

    Example:

      cigl methods
    """
    with told():
        import cigl

        _show(cigl.methods(), as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """The networks, a line each.

    Example:

      cigl models
    """
    with told():
        import cigl.models

        _show(cigl.models.names(), as_json)


def _show(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(names))
        return
    width = max(len(name) for name in names)
    for name, about in names.items():
        typer.echo(f"{name:<{width}}  {about}")


if __name__ == "__main__":
    app()
