"""What belongs into the report of each study: its tables, its figures, and the paper's numbers beside them."""

from __future__ import annotations

from dataclasses import dataclass

_ECE = ("dropout_ece", "set_ece")
_ACCURACY = ("acc_main", "dropout_acc", "intro")
_ALWAYS = ("differences", "ece-temperature", "nll-temperature", "nll", "brier", "intervals-ece", "intervals-accuracy",
           "cost")  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """Names of tables (``tabulate.TABLES``) and figures (``figures.FIGURES``), in the order of the page."""

    tables: tuple[str, ...] = ("ece", "accuracy", *_ALWAYS)
    figures: tuple[str, ...] = ("sparsity",)
    paper: tuple[str, ...] = (*_ECE, *_ACCURACY)  # the paper's tables
    shows: str = ""  # which of the paper's tables and figures the study repeats


_CONTENTS = {
    "main": Contents(
        figures=("sparsity", "sparsity-temperature"), shows="the paper's accuracy table and its figure of ECE"
    ),
    "dropout": Contents(shows="the paper's two dropout tables"),
    "calibrators": Contents(
        figures=("polygons", "sparsity", "sparsity-temperature"), shows="the paper's polygons of ECE"
    ),
    "ablation": Contents(figures=("ablation", "sparsity"), shows="the paper's ablation bars"),
    "set": Contents(shows="the paper's SET table"),
    "sup-tickets": Contents(
        tables=("ece-change", "ece", "accuracy", *_ALWAYS),
        paper=(*_ECE, *_ACCURACY, "sup_tickets_delta"),
        shows="the paper's Sup-tickets table",
    ),
    "wma-effect": Contents(
        tables=("ece-change", "ece", "accuracy", *_ALWAYS),
        figures=("bars",),
        paper=(*_ECE, *_ACCURACY, "wma_delta"),
        shows="the paper's table on averaging alone",
    ),
    "double-descent": Contents(
        figures=("double-descent", "reliability"), shows="the paper's first figure"
    ),
    "mask-correlation": Contents(
        tables=("masks", "accuracy", "ece", *_ALWAYS), figures=("masks",), shows="the paper's figure of W against Z*W"
    ),
    "imagenet": Contents(figures=("bars",), shows="the paper's ImageNet bars"),
}  # fmt: skip


def contents(study: str) -> Contents:
    """A study that is not the paper's has the tables and the figure that suit any.

    >>> contents("my own").figures
    ('sparsity',)
    """
    return _CONTENTS.get(study, Contents())
