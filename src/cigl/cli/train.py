"""cigl train: its options are the keys of the configuration."""

from __future__ import annotations

import inspect
import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from cigl.cli.completion import completion
from cigl.cli.format import Command
from cigl.cli.shared import OUTPUT, app, errors_in_one_line, importing, name_values, show_next
from cigl.common.allocation import keep_freed_memory
from cigl.common.errors import CiglError
from cigl.common.phases import phase
from cigl.common.progress import status_line
from cigl.common.text import count, percent
from cigl.train.config import KEYS, PRESETS, Config, key_type, resolve


def train_command(**options: Any) -> None:
    """Train a network and report how well calibrated it is.

    The options from --dataset to --temperature can also be given in a YAML file (--config) or come with a preset.
    Options on the command line override the file, and the file overrides the preset. A run can be interrupted at any
    time and continued with --resume.

    \b
    Examples:
      cigl train
      cigl train --preset fashion-mnist-mlp --method rigl --out runs/rigl
      cigl train --method cigl-rise
      cigl train --dataset photos
      cigl train --dataset photos --pretrained resnet18.pth
      cigl train --resume runs/rigl
      torchrun --nproc-per-node 4 -m cigl train --out runs/a
    """
    keep_freed_memory()
    special = {name: options.pop(name) for name, *_ in _OWN}
    flags = {name: value for name, value in options.items() if value not in (None, [])}
    out = Path(special["resume"] or special["out"] or _free_folder())
    with errors_in_one_line(lambda: _how_to_resume(out), several=True, argument=_flag):
        from cigl.train.progress import progress_bar
        from cigl.train.ranks.started import is_first, started

        other = [name for name in flags if name != "kernels"]
        if special["resume"] is not None and (other or special["config"] or special["preset"] or special["out"]):
            raise CiglError(
                "--resume takes the run's own configuration: give no other options with it but --kernels and --threads."
            )
        may_go_on = started().is_restarted
        if may_go_on and special["resume"] is None and special["out"] is None:
            raise CiglError("with --max-restarts give --out too: a restart resumes the run in that folder.")
        config = resolve(_lists(flags), special["config"], special["preset"])
        _check_numbers(special)
        quiet = special["quiet"] or special["json"]
        about = ""
        if special["resume"] is None and special["config"] is None and special["preset"] is None:
            config, about = _suited(config, flags, quiet)
        if special["resume"] is not None and (out / "result.json").is_file():
            if is_first("all"):
                _show_finished(out, special["json"])
            return
        if about and not quiet and is_first("all"):
            typer.echo(about, err=True)
        with progress_bar(quiet or not is_first("all"), _title(config, special["resume"], out)) as progress:
            with importing():
                from cigl.train.ranks.rendezvous import joined
                from cigl.train.run import Execution, complete, resume, train

            with joined(special["timeout_minutes"]) as ranks:
                ranks.refuse_different(_given(config, special, flags))
                out = Path(ranks.from_main(str(out)))
                common: Any = {
                    "progress": progress,
                    "checkpoint_minutes": special["checkpoint_minutes"],
                    "ranks": ranks,
                    "threads": special["threads"],
                    **_log(special),
                }
                if special["resume"] is not None:
                    result = resume(out, kernels=flags.get("kernels"), **common)
                elif may_go_on:
                    result = complete(config, out, Execution(every_epoch=True, **common))
                else:
                    result = train(config, out, **common)
        if not ranks.is_main:
            return
        if special["json"]:
            typer.echo(json.dumps({"folder": str(out)} | result))
        else:
            _show(out, result, special)


def _suited(config: Config, flags: dict[str, Any], quiet: bool) -> tuple[Config, str]:
    """The configuration with what suits a folder of images where nothing was chosen, and what to say of it."""
    known = ":" in config.dataset and not config.dataset.startswith("folder:")
    if known or not Path(config.dataset.removeprefix("folder:")).expanduser().is_dir():
        return config, ""
    with status_line(quiet):
        with importing():
            from cigl.train.suggested import suggested
        with phase(f"looking at {config.dataset}"):
            keys, about = suggested(config.dataset, flags)
    return resolve(keys | flags), about


def _flag(name: str, value: str | None = None) -> str:
    """An argument of the library, as it is given on the command line.

    >>> _flag("batch_size"), _flag("average_of", "p*W"), _flag("options"), _flag("fan_in_factor", "0.5")
    ('--batch-size', '--average-of p*W', '--option', '--option fan_in_factor=0.5')
    """
    if name not in KEYS:
        return name if value is None else f"--option {name}={value}"
    flag = "--option" if name == "options" else f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


def _check_numbers(special: dict[str, Any]) -> None:
    for name in ("threads", "log_every"):
        if special[name] is not None and special[name] < 1:
            raise CiglError(f"--{name.replace('_', '-')} is {special[name]}: give a whole number, at least 1.")
    for name in ("checkpoint_minutes", "timeout_minutes"):
        if not 0 < special[name] < float("inf"):
            raise CiglError(f"--{name.replace('_', '-')} is {special[name]:g}: give a number above 0.")


def _log(special: dict[str, Any]) -> dict[str, Any]:
    """The names of trackers, none of them, or (resumed) those of before."""
    from cigl.integrations.trackers import check_trackers, names_of

    if special["log"] is None:
        return {"log_every": special["log_every"]}
    names = names_of(special["log"])
    check_trackers(names)
    return {"log": names, "log_every": special["log_every"]}


def _trackers(out: Path) -> list[str]:
    """How to look at what a run has logged."""
    from cigl.train.folder.log import STATE
    from cigl.train.folder.run_folder import RunFolder

    found = RunFolder(out).read_json(STATE) if (out / STATE).is_file() else {}
    return [each["where"] for each in found.values()]


def _title(config: Config, resumed: Path | None, out: Path) -> str:
    if resumed is not None:
        return f"resuming the run in {out}"
    return (
        f"training {config.model} on {config.dataset} with {config.method} at {percent(config.sparsity)} sparsity: "
        f"{count(config.epochs, 'epoch')}, into {out}"
    )


def _how_to_resume(out: Path) -> str:
    if not (out / "config.yaml").is_file() or (out / "result.json").is_file():
        return ""
    return f"what was trained is saved, resume it with: cigl train --resume {shlex.quote(str(out))}"


def _show_finished(out: Path, as_json: bool) -> None:
    """Of a run that was to be resumed."""
    from cigl.train.folder.run_folder import RunFolder

    run = RunFolder(out)
    if as_json:
        typer.echo(json.dumps({"folder": str(out)} | run.read_json("result.json")))
        return
    epochs, folder = run.read_config().epochs, shlex.quote(str(out))
    typer.echo(f"the run in {out} is finished: it has trained its {count(epochs, 'epoch')}.")
    longer = f"cigl train --config {shlex.quote(str(out / 'config.yaml'))} --epochs {2 * epochs}"
    show_next((longer, "train it for longer, in a new folder"), (f"cigl evaluate {folder}", "see its report again"))


def _show(out: Path, result: dict[str, Any], special: dict[str, Any]) -> None:
    from cigl.train.show import show_result

    show_result(out, result, special["explain"], special["all"])
    for where in _trackers(out):
        typer.echo(f"logged: {where}")
    folder = shlex.quote(str(out))
    steps = [(f"cigl evaluate {folder}", "reliability diagram")]
    if result["temperature"] is None:
        steps.append(("cigl train --temperature holdout ...", "correct the confidence"))
    steps.append((f"cigl export {folder} model.cigl", "one small file to deploy"))
    show_next(*steps)


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
            flags[name] = name_values("--option", value)
        if name == "milestones":
            try:
                flags[name] = [float(part) for part in str(value).split(",") if part.strip()]
            except ValueError:
                raise CiglError(f"--milestones is {value!r}: give numbers such as 0.5,0.75.") from None
    return flags


def _free_folder() -> Path:
    number = 1
    while (folder := Path("runs") / f"{number:03d}").exists():
        number += 1
    return folder


_OWN: list[tuple[str, Any, Any, str]] = [  # those that are not keys of a run
    ("out", Path | None, None, "folder of the run (default: runs/001, 002, ...)"),
    ("config", Path | None, None, "YAML file with options of the run, as key: value"),
    ("preset", str | None, None, "settings by name: " + ", ".join(PRESETS)),
    ("resume", Path | None, None, "resume the run in this folder"),
    ("checkpoint_minutes", float, 10.0, "save at least this often, in addition to once per epoch (default: 10)"),
    ("timeout_minutes", float, 10.0, "how long the processes of torchrun wait for each other (default: 10)"),
    ("threads", int | None, None, "CPU threads (default: by the size of the work, one for a small network)"),
    ("log", str | None, None, "trackers, separated by commas: tensorboard, wandb, mlflow; or none"),
    ("log_every", int, 50, "steps between two rows of steps.csv and of the trackers (default: 50)"),
    ("quiet", bool, False, "no progress bar"),
    ("json", bool, False, "print the result as JSON, for scripts"),
    ("explain", bool, False, "explain the numbers in the table"),
    ("all", bool, False, "show every metric, not just the four to look at first"),
]
_METAVARS = {"options": "NAME=VALUE"}
_METHOD = "Method (by default as the method defines them)"
_PANELS = {
    "What is trained": "dataset model pretrained method sparsity epochs seed",
    "Data": "batch_size train_size subset image_size validation val_split redraw augment workers",
    _METHOD: "",  # all keys that are in no other panel
    "Optimizer": "optimizer lr momentum nesterov weight_decay decay_biases "
    "schedule milestones gamma lr_end warmup_epochs clip",
    "Calibration": "temperature label_smoothing mixup",
    "Run": "out config preset resume checkpoint_minutes timeout_minutes threads device kernels bf16",
    OUTPUT: "quiet json explain all log log_every",
}
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names.split()}


def _signature() -> inspect.Signature:
    """The options of ``cigl train``: its own, and one for each key of the configuration."""
    options = list(_OWN)
    for each in fields(Config):
        shown = ",".join(f"{v:.3g}" for v in each.default) if isinstance(each.default, tuple) else each.default
        kind = key_type(each.name)[0]
        kind = list[str] if each.name == "options" else kind if kind in (int, float, bool) else str
        options.append((each.name, kind | None, None, _about(each.metadata["help"], shown)))
    options.sort(key=lambda each: list(_PANELS).index(_PANEL_OF.get(each[0], _METHOD)))  # stable within a panel
    parameters = []
    for name, kind, default, about in options:
        flag = "--option" if name == "options" else f"--{name.replace('_', '-')}"
        flags = [f"{flag}/--no-{name.replace('_', '-')}"] if kind == (bool | None) else [flag]
        shown = typer.Option(
            *flags,
            help=about,
            show_default=False,
            metavar=_METAVARS.get(name),
            rich_help_panel=_PANEL_OF.get(name, _METHOD),
            autocompletion=completion(name),
        )
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])
        )
    return inspect.Signature(parameters)


def _about(text: str, default: Any) -> str:
    if default in (None, "") or "(default" in text:
        return text
    return f"{text} (default: {str(default).lower() if isinstance(default, bool) else default})"


train_command.__signature__ = _signature()  # type: ignore[attr-defined]
train_command.__annotations__ = {name: p.annotation for name, p in _signature().parameters.items()}
app.command("train", cls=Command)(train_command)
