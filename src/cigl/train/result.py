"""The end of a run: its final model, its temperature, its reports and ``result.json``."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from cigl.calibrate import fit_temperature
from cigl.calibrate.reports.classification import report
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.phases import phase
from cigl.train.evaluate import has_members, predictor_of
from cigl.train.folder.by_class import confusions, write_confusions
from cigl.train.folder.finished import MODEL, about_model
from cigl.train.folder.log import Trackers
from cigl.train.folder.provenance import versions
from cigl.train.folder.run_folder import RunFolder
from cigl.train.trainer import Trainer


def finish(trainer: Trainer, folder: RunFolder, pilot: float | None, trackers: Trackers) -> dict[str, Any]:
    if not all(value.isfinite().all() for value in trainer.model.state_dict().values()):
        raise CiglError(
            "the weights are not finite after the last step: lower lr or set clip, and train again.",
            arguments=("lr", "clip"),
        )
    model = trainer.finalize()
    predictor = predictor_of(trainer, model)
    temperature = pilot
    observed = trainer.sparse.controller is not None and trainer.config.temperature == "none"
    if trainer.config.temperature == "holdout" or observed:  # what has steered the mask gives the temperature, too
        logits, labels = trainer.predict(predictor, "validation")
        with phase("fitting the temperature"):
            fitted = fit_temperature(logits=logits, labels=labels)
        temperature = fitted.value
        if fitted.clamped:
            warnings.warn(
                "the best temperature for the validation data is not finite; the nearest allowed one is used.",
                CiglWarning,
                stacklevel=2,
            )
    folder.write_tensors(MODEL, dict(model.state_dict()), about_model(trainer.splits.source, temperature))
    logits, labels = trainer.predict(predictor, "test")
    result = trainer.ranks.from_main(
        _write_result(trainer, folder, model, logits, labels, temperature, trackers) if trainer.ranks.is_main else None
    )
    folder.drop_checkpoints(keep=int(has_members(trainer)))  # the model is all that the others need
    return dict(result)


def _write_result(
    trainer: Trainer,
    folder: RunFolder,
    model: nn.Module,
    logits: Tensor,
    labels: Tensor,
    temperature: float | None,
    trackers: Trackers,
) -> dict[str, Any]:
    with phase("computing confidence intervals"):
        reports = {"report": report(logits=logits, labels=labels)}
        if temperature is not None:
            reports["report-temperature"] = report(logits=logits.double() / temperature, labels=labels)
    for name, each in reports.items():
        each.to_json(folder.path / f"{name}.json")
    source = trainer.splits.source
    write_confusions(folder.path, confusions(logits, labels, source.classes), source.class_names)
    trackers.report(reports, trainer.step, folder.path)
    summary = trainer.sparse.summary()
    total = summary.total
    result = {
        "config": trainer.config.plain(),
        "digest": trainer.config.digest(),
        "versions": versions(trainer.ranks),
        "temperature": temperature,
        "density": trainer.sparse.density,
        "active": total.active,
        # of the finished model, where active positions may hold zeros
        "nonzeros": sum(int(model.get_parameter(row.name).count_nonzero()) for row in trainer.sparse.layers),
        "explored": trainer.sparse.explored,
        "inference_flops": total.inference_flops,
        "training_flops": total.training_flops,
        "kernels": {"asked": trainer.config.kernels, "layers": {row.layer: row.kernels for row in summary.rows}},
        "seconds": sum(row["seconds"] for row in folder.read_metrics()),
        "test": {name: each.to_dict()["metrics"] for name, each in reports.items()},
    }
    folder.write_json("result.json", result)
    return result
