"""cigl train: its options are the keys of the configuration."""

from __future__ import annotations

import contextlib
import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from cigl.cli.shared import app, errors_in_one_line
from cigl.errors import CiglError
from cigl.train.config import PRESETS, Config, key_type, resolve

# Not keys of a run.
_SPECIAL = (
    "out", "config", "preset", "resume", "checkpoint_minutes", "timeout_minutes", "threads", "log", "log_every",
    "quiet", "json",
)  # fmt: skip


def train_command(**options: Any) -> None:
    """Train a network and report how well calibrated it is.

    Every key can also be given in a YAML file (--config) or come with a preset; flags win over the file, the
    file over the preset. The run folder holds the resolved configuration, metrics, checkpoints, the finished
    model and its report. Kill it whenever you like and continue with --resume.

    Examples:

      cigl train

      cigl train --preset fashion-mnist-mlp --method rigl --sparsity 0.95 --seed 1 --out runs/rigl-95

      cigl train --resume runs/rigl-95

      torchrun --nproc-per-node 4 -m cigl train --out runs/a
    """
    special = {name: options.pop(name) for name in _SPECIAL}
    flags = {name: value for name, value in options.items() if value not in (None, [])}
    with errors_in_one_line(several=True):
        from cigl.train.started import started

        other = [name for name in flags if name != "kernels"]
        if special["resume"] is not None and (other or special["config"] or special["preset"] or special["out"]):
            raise CiglError("--resume takes the run's own configuration: give no other options with it but --kernels.")
        may_go_on = started().is_restarted
        if may_go_on and special["resume"] is None and special["out"] is None:
            raise CiglError("with --max-restarts give --out too: a restart resumes the run in that folder.")
        config = resolve(_lists(flags), special["config"], special["preset"])

        import torch

        from cigl.train.joining import joined
        from cigl.train.run import complete, resume, train
        from cigl.train.show import progress_bar, show_result

        if special["threads"] is not None:
            if special["threads"] < 1:
                raise CiglError(f"--threads is {special['threads']}: give a whole number, at least 1.")
            torch.set_num_threads(special["threads"])
        minutes, timeout = special["checkpoint_minutes"], special["timeout_minutes"]
        for flag, value in (("--checkpoint-minutes", minutes), ("--timeout-minutes", timeout)):
            if not 0 < value < float("inf"):
                raise CiglError(f"{flag} is {value}: give a number above 0.")
        log = _log(special)
        with joined(timeout) as ranks:
            ranks.refuse_different(_given(config, special, flags))
            out = Path(ranks.from_main(str(special["resume"] or special["out"] or _free_folder())))
            with progress_bar(special["quiet"] or special["json"] or not ranks.is_main) as progress:
                common: Any = {"progress": progress, "checkpoint_minutes": minutes, "ranks": ranks, **log}
                if special["resume"] is not None:
                    result = resume(out, kernels=flags.get("kernels"), **common)
                elif may_go_on:
                    result = complete(config, out, every_epoch=True, **common)
                else:
                    result = train(config, out, **common)
        if not ranks.is_main:
            return
        if special["json"]:
            typer.echo(json.dumps({"folder": str(out)} | result))
        else:
            show_result(Path(out), result)
            for where in _trackers(out):
                typer.echo(f"logged: {where}")


def _log(special: dict[str, Any]) -> dict[str, Any]:
    """The names of trackers, none of them, or (resumed) those of before."""
    from cigl.integrations.trackers import check_trackers, names_of

    if special["log_every"] < 1:
        raise CiglError(f"--log-every is {special['log_every']}: give a number of steps, at least 1.")
    if special["log"] is None:
        return {"log_every": special["log_every"]}
    names = names_of(special["log"])
    check_trackers(names)
    return {"log": names, "log_every": special["log_every"]}


def _trackers(out: Path) -> list[str]:
    """How to look at what a run has logged."""
    from cigl.train.folder import RunFolder
    from cigl.train.log import STATE

    found = RunFolder(out).read_json(STATE) if (out / STATE).is_file() else {}
    return [each["where"] for each in found.values()]


def _given(config: Config, special: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """What all ranks of a run must have in common."""
    import torch

    import cigl

    names = ("out", "resume", "checkpoint_minutes")
    options = {f"--{name.replace('_', '-')}": str(special[name]) for name in names}
    versions = {"the version of cigl": cigl.__version__, "the version of torch": torch.__version__}
    return versions | options | {"kernels": flags.get("kernels")} | config.plain()


def _lists(flags: dict[str, Any]) -> dict[str, Any]:
    """Comma-separated numbers and NAME=VALUE, as flags have them."""
    for name, value in flags.items():
        if name == "options":
            flags[name] = dict(_option(text) for text in value)
        if name == "milestones":
            try:
                flags[name] = [float(part) for part in str(value).split(",") if part.strip()]
            except ValueError:
                raise CiglError(f"milestones is {value!r}: give numbers such as 0.5,0.75.") from None
    return flags


def _option(text: str) -> tuple[str, Any]:
    """A number, true, false or a text.

    >>> _option("cycle_drop=0.3"), _option("keep_snapshots=true")
    (('cycle_drop', 0.3), ('keep_snapshots', True))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CiglError(f"--option is {text!r}: give NAME=VALUE, such as cycle_drop=0.3.")
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return name, read(value)
    return name, value


def _free_folder() -> Path:
    number = 1
    while (folder := Path("runs") / f"{number:03d}").exists():
        number += 1
    return folder


_METAVARS = {"options": "NAME=VALUE"}


def _signature() -> inspect.Signature:
    """The options of ``cigl train``: its own, and one for each key of the configuration."""
    own: list[tuple[str, Any, Any, str]] = [
        ("out", Path | None, None, "folder of the run (default: runs/001, 002, ...)"),
        ("config", Path | None, None, "YAML file with any of the keys below"),
        ("preset", str | None, None, "settings by name: " + ", ".join(PRESETS)),
        ("resume", Path | None, None, "resume the run in this folder"),
        ("checkpoint_minutes", float, 10.0, "save at least this often, besides once per epoch"),
        ("timeout_minutes", float, 10.0, "how long the processes of torchrun wait for each other"),
        ("threads", int | None, None, "CPU threads (default: all; one makes runs repeatable to the bit)"),
        ("log", str | None, None, "trackers: tensorboard, wandb, mlflow, with commas between them; none"),
        ("log_every", int, 50, "steps between two rows of steps.csv and of the trackers"),
        ("quiet", bool, False, "no progress bar"),
        ("json", bool, False, "print the result as JSON, for scripts"),
    ]  # fmt: skip
    for each in fields(Config):
        shown = ",".join(f"{v:g}" for v in each.default) if isinstance(each.default, tuple) else each.default
        kind = key_type(each.name)[0]
        kind = list[str] if each.name == "options" else kind if kind in (int, float, bool) else str
        own.append((each.name, kind | None, None, _about(each.metadata["help"], shown)))
    parameters = []
    for name, kind, default, about in own:
        flag = "--option" if name == "options" else f"--{name.replace('_', '-')}"
        flags = [f"{flag}/--no-{name.replace('_', '-')}"] if kind == (bool | None) else [flag]
        shown = typer.Option(*flags, help=about, show_default=False, metavar=_METAVARS.get(name))
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])
        )
    return inspect.Signature(parameters)


def _about(text: str, default: Any) -> str:
    return (
        text if default in (None, "") else f"{text} [{str(default).lower() if isinstance(default, bool) else default}]"
    )


train_command.__signature__ = _signature()  # type: ignore[attr-defined]
train_command.__annotations__ = {name: p.annotation for name, p in _signature().parameters.items()}
app.command("train")(train_command)
