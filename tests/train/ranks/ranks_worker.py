"""One of the ranks of test_ranks.py: `ranks_worker.py FOLDER NAME...`, each name one scenario below, one after another.

What a scenario returns goes to FOLDER/NAME-RANK.json. The environment says which rank it is, as torchrun does.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch

from cigl import CiglError
from cigl.train.config import Config
from cigl.train.folder.run_folder import Busy, RunFolder
from cigl.train.ranks.rendezvous import joined
from cigl.train.ranks.started import exits_without_teardown
from cigl.train.run import Execution, complete, resume, train
from cigl.train.signals import Stopped
from cigl.train.trainer import Splits, Trainer

FOLDER = Path(sys.argv[1] if __name__ == "__main__" else ".")
COMMON = {"dataset": "ranks_worker:data", "batch_size": 64, "method": "rigl", "lr": 0.05}
# 200 steps, two topology rounds, no batch norm.
LONG = Config(model="mlp-30", train_size=640, epochs=20, update_every=50, update_until=0.6, **COMMON)
SMALL = Config(model="mlp-20", train_size=256, epochs=4, update_every=3, validation=0.1, **COMMON)
NORM = SMALL.changed(model="ranks_worker:normed", reestimate=True)
DROPOUT = SMALL.changed(model="ranks_worker:dropping")
sys.path.insert(0, str(Path(__file__).parent))


def data():
    """Ten noisy classes, few of them to be tested on, which is quick."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (840,), generator=draw)
    inputs = torch.randn(10, 40, generator=draw)[labels] + 2 * torch.randn(840, 40, generator=draw)
    return inputs[:640], labels[:640], inputs[640:], labels[640:]


def normed(classes):
    layers = [torch.nn.Linear(40, 20, bias=False), torch.nn.BatchNorm1d(20), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(20, classes))


def dropping(classes):
    return torch.nn.Sequential(
        torch.nn.Linear(40, 20), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(20, classes)
    )


def refusal(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except CiglError as error:
        return str(error)
    return None


def interrupted(config, out, ranks, steps):
    """Stopped by a signal that only the last rank gets, and resumed."""

    def stop(trainer, row):
        if trainer.step == steps and row is None and ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(config, out, progress=stop, ranks=ranks)
    except Stopped as stopped:
        code = stopped.exit_code
    signal.getsignal(signal.SIGTERM).number = None  # as in a new process
    seen = RunFolder(out).checkpoint(steps)
    resume(out, ranks=ranks)
    return {"code": code, "generators": len(seen["generators"])}


def long(ranks):
    return train(LONG, FOLDER / "long", ranks=ranks)


def mixup(ranks):
    return train(SMALL.changed(mixup=0.3), FOLDER / "mixup", ranks=ranks)


def holdout(ranks):
    return train(SMALL.changed(temperature="holdout"), FOLDER / "holdout", ranks=ranks)


def pilot(ranks):
    return train(SMALL.changed(temperature="pilot", validation=0.0), FOLDER / "pilot", ranks=ranks)


def norm(ranks):
    """Batch norm: the same statistics on every rank, whatever is evaluated there."""
    trainer = Trainer(NORM, Splits.of(NORM), ranks)
    for _ in trainer.steps():
        pass
    trained = [value.tolist() for name, value in trainer.model.state_dict().items() if "running" in name]
    final = trainer.sparse.finalize(trainer._training_batches(NORM.epochs, 0, ranks.share))
    alone = [value.tolist() for name, value in final.state_dict().items() if "running" in name]
    whole = [value.tolist() for name, value in trainer.finalize().state_dict().items() if "running" in name]
    return {"trained": trained, "alone": alone, "whole": whole}


def dropout(ranks):
    train(DROPOUT, FOLDER / "dropout", ranks=ranks)
    return interrupted(DROPOUT, FOLDER / "dropout-resumed", ranks, 6)


def more_ranks(ranks):
    """A run that one process began, which must be prepared by the test."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        resume(FOLDER / "more_ranks", ranks=ranks)
    return [str(each.message) for each in seen]


def predictions(ranks):
    """Of a split whose size the ranks don't divide: every sample once, in order."""
    config = SMALL.changed(train_size=257, validation=0.2)
    trainer = Trainer(config, Splits.of(config), ranks)
    logits, labels = trainer.predict(trainer.model.eval(), "validation")
    torch.save((logits, labels), FOLDER / f"predictions-{ranks.rank}.pt")
    return len(trainer.splits.validation)


def few(ranks):
    """A split with fewer samples than ranks."""
    config = SMALL.changed(validation=0.005)
    trainer = Trainer(config, Splits.of(config), ranks)
    assert len(trainer.splits.validation) == 1
    return len(trainer.predict(trainer.model.eval(), "validation")[1])


def refusals(ranks):
    """Each is raised on all ranks, which are then still together."""
    bad = {
        "seeds": refusal(ranks.refuse_different, {"seed": ranks.rank, "lr": 0.1}),
        "batch": refusal(train, SMALL.changed(batch_size=65), FOLDER / "bad", ranks=ranks),
        "dataset": refusal(train, SMALL.changed(dataset="minst1d"), FOLDER / "bad", ranks=ranks),
        "data": refusal(train, SMALL.changed(train_size=256 - ranks.rank), FOLDER / "bad", ranks=ranks),
        "folder": refusal(train, SMALL, FOLDER / f"bad-{min(ranks.rank, 1)}", ranks=ranks),
    }
    folder = RunFolder(FOLDER / "holds a run", ranks)
    with folder.locked():
        folder.write_config(SMALL)
        bad["busy"] = refusal(complete, SMALL, FOLDER / "holds a run", Execution(ranks=ranks))
    bad["started"] = refusal(train, SMALL, FOLDER / "holds a run", ranks=ranks)
    bad["other"] = refusal(complete, LONG, FOLDER / "holds a run", Execution(ranks=ranks))
    try:
        with folder.locked(), RunFolder(FOLDER / "holds a run", ranks).locked():
            pass
    except Busy:
        bad["type"] = "Busy"
    bad["nan"] = refusal(train, SMALL.changed(lr=1e30), FOLDER / "nan", ranks=ranks)
    return bad


def main():
    torch.set_num_threads(1)
    from cigl.train.folder import run_folder

    run_folder.PATIENCE = 0.3
    with joined(minutes=2) as ranks:
        for name in sys.argv[2:]:
            found = globals()[name](ranks)
            (FOLDER / f"{name}-{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    with exits_without_teardown():
        main()
