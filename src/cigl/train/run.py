"""A run from its configuration to its result, in its folder; it can be killed and resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cigl.common.errors import CiglError
from cigl.common.phases import phase
from cigl.integrations.trackers import check_trackers
from cigl.train.config import TEMPERATURES, Config
from cigl.train.folder.log import EVERY, Log
from cigl.train.folder.provenance import (
    DATA,
    VERSIONS,
    record,
    refuse_other_data,
    report_differences,
    report_other_ranks,
    started_on,
    versions,
)
from cigl.train.folder.run_folder import Busy, RunFolder
from cigl.train.ranks.group import ONE, Ranks
from cigl.train.result import finish
from cigl.train.signals import Requests, listening
from cigl.train.threads import recorded, threads_for, using
from cigl.train.trainer import Trainer, opened

Progress = Callable[[Trainer, "dict[str, Any] | None"], None]
PILOT_SEED = 0


@dataclass(frozen=True)
class Execution:
    """How a run is executed, beside what it is."""

    progress: Progress | None = None
    checkpoint_minutes: float = 0.5  # a checkpoint at least this often
    every_epoch: bool = False  # ... and after each epoch
    ranks: Ranks = ONE
    threads: int | None = None  # those it was started with; at first as many as its steps are worth
    log: tuple[str, ...] | None = None  # names of trackers; None for those of before, or of $CIGL_LOG
    log_every: int = EVERY  # steps

    def __post_init__(self) -> None:
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise CiglError(f"threads is {self.threads!r}: give a whole number, at least 1.")
        check_trackers(self.log or ())


def train(
    config: Config,
    out: Path | str,
    *,
    progress: Progress | None = None,
    checkpoint_minutes: float = 10.0,
    ranks: Ranks = ONE,
    threads: int | None = None,
    log: tuple[str, ...] | None = None,
    log_every: int = EVERY,
) -> dict[str, Any]:
    """Train in a new folder and return what ``result.json`` holds: what `cigl train` does.

    Args:
        config: The run; ``cigl.train.resolve({"sparsity": 0.9})`` makes one.
        out: The run's folder. It must not have a run in it.
        progress: ``progress(trainer, row)`` is called after every step (row None) and epoch (its metrics).
        checkpoint_minutes: Save at least this often, in addition to once per epoch.
        ranks: The processes that train it together: every one of them calls this function, and rank 0 writes.
        threads: Of the CPU. By default chosen by the work in a step, one for a small network, and at most
            ``torch.get_num_threads()``.
        log: Names of trackers (tensorboard, wandb, mlflow; by default those of $CIGL_LOG).
        log_every: Steps between the numbers that they and ``steps.csv`` get.

    >>> from pathlib import Path
    >>> from cigl.train import Config, train
    >>> import tempfile
    >>> config = Config(train_size=320, epochs=2, update_every=4, average_of="p*W")
    >>> result = train(config, Path(tempfile.mkdtemp()) / "run")
    >>> round(result["density"], 3)
    0.2
    """
    how = Execution(progress, checkpoint_minutes, True, ranks, threads, log, log_every)
    folder = RunFolder(out, ranks)
    with listening() as requests:
        _refuse_started(folder)
        with folder.made():
            trainer = opened(config, ranks)
            _check(requests, ranks)
            with folder.locked():
                _refuse_started(folder)
                return _Run(folder, trainer, requests, how).to_its_end()


def _check(requests: Requests, ranks: Ranks) -> None:
    """Raise Stopped on every rank if one of them was asked to stop."""
    requests.number = ranks.largest(requests.number or 0) or None
    requests.check()


def _refuse_started(folder: RunFolder) -> None:
    if folder.is_started:
        path = folder.path
        raise CiglError(f"{path} already holds a run: resume it with --resume {path}, or choose another --out.")


def resume(
    out: Path | str,
    *,
    progress: Progress | None = None,
    checkpoint_minutes: float = 10.0,
    kernels: str | None = None,
    ranks: Ranks = ONE,
    threads: int | None = None,
    log: tuple[str, ...] | None = None,
    log_every: int = EVERY,
) -> dict[str, Any]:
    """Resume the run in this folder where it was stopped or killed; a finished run is only read.

    With the same kernels, threads and number of ranks, on the same machine and versions, it ends with the same bits as
    if it had never stopped; otherwise a warning says what differs.

    Args:
        out: The run's folder.
        progress: As for ``train``.
        checkpoint_minutes: As for ``train``.
        kernels: "auto", "sparse" or "masked" (None: the run's own).
        ranks: As for ``train``.
        threads: None: those it was started with.
        log: As for ``train``; None: where it logged before, in the same runs of those trackers.
        log_every: As for ``train``.
    """
    how = Execution(progress, checkpoint_minutes, True, ranks, threads, log, log_every)
    folder = RunFolder(out, ranks)
    config = folder.read_config()
    if folder.is_finished:
        return dict(folder.read_json("result.json"))
    if kernels is not None:
        config = config.changed(kernels=kernels)
    with listening() as requests, folder.locked():
        return _Run(folder, opened(config, ranks), requests, how).to_its_end()


def complete(config: Config, out: Path | str, how: Execution | None = None) -> dict[str, Any]:
    """Whatever is left to do of this run: all of it, the rest or nothing. Busy if another process is at it."""
    how = how or Execution()
    folder = RunFolder(out, how.ranks)
    with listening() as requests, folder.locked():
        if folder.is_finished:
            return dict(folder.read_json("result.json"))
        trainer = opened(config, how.ranks)
        if folder.is_started and folder.read_config() != config:
            raise CiglError(f"{folder.path} holds a run of another configuration: remove it, or choose another place.")
        return _Run(folder, trainer, requests, how).to_its_end()


@dataclass(frozen=True)
class _Run:
    """A run in its folder, which this process has locked."""

    folder: RunFolder
    trainer: Trainer
    requests: Requests
    how: Execution

    def to_its_end(self) -> dict[str, Any]:
        """All of it, or the rest."""
        folder, trainer, ranks = self.folder, self.trainer, self.how.ranks
        _check(self.requests, ranks)
        before = started_on(folder, ranks)
        with using(self.how.threads or recorded(before) or threads_for(trainer)):
            if before:
                report_differences(before, ranks)
            elif not folder.is_started:
                self._take_training()
                record(folder, trainer)
                folder.write_config(trainer.config)
            return self._trained()

    def _take_training(self) -> None:
        """From a finished run beside this one that differs in its temperature alone, and so has trained the same
        weights.

        Only where its last checkpoint was kept: then all that is left of this run is to predict.
        """
        folder, trainer = self.folder, self.trainer
        config, last = trainer.config, trainer.config.epochs * trainer.steps_per_epoch
        others = [config.changed(temperature=kind) for kind in TEMPERATURES if kind != config.temperature]
        for other in others if trainer.ranks.size == 1 else ():  # several would have to agree on what they see
            beside = RunFolder(folder.path.parent / other.digest())
            if other.held_out != config.held_out or not beside.is_finished or not beside.has_checkpoint(last):
                continue
            same = {VERSIONS: versions(), DATA: trainer.splits.about()}
            if any(beside.read_json(name) != value for name, value in same.items()):
                continue
            folder.copy_metrics(beside)
            folder.save_checkpoint(last, beside.checkpoint(last) | {"digest": trainer.digest()})
            return

    def _trained(self) -> dict[str, Any]:
        folder, trainer, config = self.folder, self.trainer, self.trainer.config
        pilot = self._pilot_temperature() if config.temperature == "pilot" else None
        trainer.seed_generator()  # a pilot may have drawn numbers since
        with phase("reading the checkpoint"):
            state = folder.load_checkpoint()
            if state is not None:
                trainer.load(state)
        if state is not None:
            report_other_ranks(len(state.get("generators", [None])), trainer.ranks.size)
        refuse_other_data(folder, trainer.splits)
        with folder.trackers(self.how.log, config) as trackers:
            folder.cut_metrics(trainer.epoch, trainer.step)
            self._train(Log(trainer, folder, trackers, self.how.log_every))
            return finish(trainer, folder, pilot, trackers)

    def _train(self, log: Log) -> None:
        trainer, how, saved = self.trainer, self.how, time.monotonic()
        show = how.progress or (lambda trainer, row: None)

        def save() -> None:
            nonlocal saved
            with phase("saving a checkpoint"):
                self.folder.save_checkpoint(trainer.step, trainer.state())
            saved = time.monotonic()

        def save_if(wanted: bool) -> None:
            """On all ranks, if one of them wants it; and end if one of them was asked to."""
            if how.ranks.largest(wanted or self.requests.number is not None):
                save()
                _check(self.requests, how.ranks)

        while trainer.epoch < trainer.config.epochs:
            start = time.monotonic() - trainer.seconds
            for _ in trainer.steps():
                trainer.seconds = time.monotonic() - start
                log.step()
                show(trainer, None)
                save_if(time.monotonic() - saved > how.checkpoint_minutes * 60)
            row = trainer.finish_epoch()
            self.folder.add_metrics(row)
            if how.every_epoch or trainer.epoch == trainer.config.epochs:
                save()
            log.epoch(row)
            show(trainer, row)
            save_if(False)

    def _pilot_temperature(self) -> float:
        """Fitted by a run on nine tenths of what this one trains on; one pilot serves all seeds of a setting."""
        config = self.trainer.config
        held_out = config.held_out + 0.1 * (1 - config.held_out)
        pilot = config.changed(temperature="holdout", seed=PILOT_SEED, validation=round(held_out, 12))
        place = self.folder.path.parent / "pilots" / pilot.digest()
        quiet = replace(self.how, log=())  # a pilot is no run of its own to look at
        while True:
            _check(self.requests, self.how.ranks)
            try:
                with phase("pilot run"):
                    return float(complete(pilot, place, quiet)["temperature"])
            except Busy:
                with phase("waiting for another process, which trains the pilot run"):
                    time.sleep(0.2)
