"""Trainers, and what people do with them. Run by test_compatible_trainers.py."""

from case import Case

TRANSFORMERS = "`CigLCallback` of `cigl.integrations.transformers`"
LIGHTNING = "`CigLCallback` of `cigl.integrations.lightning`"

CASES = [
    Case("Transformers", "`Trainer`", "works", TRANSFORMERS),
    Case("Transformers", "accumulation, clipping, `max_steps`", "works", "optimizer steps are counted"),
    Case("Transformers", "bf16", "works", "autocast's wrapper is taken off `trainer.model` in the end"),
    Case("Transformers", "gradient checkpointing", "works", "recomputed forwards keep the step's random mask"),
    Case("Transformers", "`resume_from_checkpoint`", "works", "bit for bit, from any folder"),
    Case(
        "Transformers",
        "`load_best_model_at_end`",
        "works",
        "the checkpoint that scored best, as it was evaluated; nothing is averaged",
    ),
    Case(
        "Transformers",
        "`load_best_model_at_end` with gradual pruning (`gmp`)",
        "refused",
        "its early checkpoints have too few zeros",
    ),
    Case("Transformers", "several processes (DDP)", "works", "rank 0 saves"),
    Case("Lightning", "automatic optimization", "works", LIGHTNING),
    Case("Lightning", "manual optimization, one optimizer", "works", "`CigLCallback(steps=...)` if not one per batch"),
    Case(
        "Lightning",
        "manual optimization, several optimizers",
        "refused",
        "call `cigl.attach` for the part and the optimizer you mean",
    ),
    Case("Lightning", "accumulation, clipping, `max_steps`", "works", "optimizer steps are counted"),
    Case("Lightning", "`bf16-mixed`", "works", ""),
    Case("Lightning", "`fit(ckpt_path=...)`", "works", "bit for bit, if the data comes in the same order"),
    Case("Lightning", "`Tuner.lr_find`, then `fit`", "works", "the search runs dense, and is undone"),
    Case(
        "Lightning",
        "`EMAWeightAveraging`, `WeightAveraging`, `StochasticWeightAveraging`",
        "refused",
        "averages over changing masks fill the zeros; `cigl` averages by itself",
    ),
    Case("Lightning", "several processes (DDP)", "works", ""),
    Case("Accelerate", "`cigl.attach` before `prepare`", "works", ""),
    Case("Accelerate", "`cigl.attach` after `prepare`", "works", ""),
    Case("Accelerate", "`register_for_checkpointing(sparse)`", "works", "bit for bit"),
    Case("Fabric", "`cigl.attach` before `setup`", "works", ""),
    Case("Fabric", "`fabric.save` and `fabric.load`", "works", "the sparsifier is part of the state, like a model"),
]
