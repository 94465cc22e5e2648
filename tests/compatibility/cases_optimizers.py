"""The optimizers that test_optimizers.py tries: each case is run by a test of that name."""

from case import Case

KNOWN = "state per weight is known"
FOUND = "state per weight is determined in the first steps"
ALONE = "; the rest is left alone"
QUANTIZED = "quantized state is left alone: to it, a weight that Z switches off has a zero gradient"


def _works(name: str, how: str) -> Case:
    return Case("Optimizers", name, "works", how)


def _refused(name: str, why: str) -> Case:
    return Case("Optimizers", name, "refused", why)


CASES: list[Case] = [
    *(
        _works(f"torch.optim.{name}", KNOWN)
        for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adamax")
    ),
    _works("torch.optim.Adagrad", "a new weight starts from initial_accumulator_value"),
    _works("torch.optim.Rprop", "a new weight starts from the first learning rate as its step size"),
    _works("torch.optim.ASGD", "the averaged weights follow M"),
    _works("torch.optim.Adafactor", "factored moments are left alone"),
    _works("torch.optim.Muon", "its update mixes weights: M and Z are applied again after each step"),
    _refused("torch.optim.LBFGS", "moves inactive weights within a step"),
    _refused("torch.optim.SparseAdam", "needs sparse gradients, which masks can't be applied to"),
    _works("Lion", FOUND),
    _works("LAMB", FOUND),
    _works("AdaBelief", FOUND),
    _works("Adan", FOUND),
    _works("D-Adaptation (DAdaptAdam)", FOUND),
    _works("Prodigy (prodigyopt)", f"{FOUND}; its copy of the first weights is of M*W"),
    _works("Prodigy (pytorch-optimizer)", f"{FOUND}; its copy of the first weights is of M*W"),
    _refused("Prodigy with slice_p above 1", "under a random mask: its copy of some first weights can't be corrected"),
    _works("AdamWScheduleFree", f"{FOUND}; call optimizer.eval() before finalize"),
    _works("SGDScheduleFree", f"{FOUND}; call optimizer.eval() before finalize"),
    _works("SOAP", f"{FOUND}; moments in the eigenbasis are left alone"),
    _works("Shampoo", "preconditioners are left alone"),
    _works("Adafactor (Transformers)", FOUND + ALONE),
    _works("8-bit Adam (torchao)", QUANTIZED),
    _works("4-bit Adam (torchao)", QUANTIZED),
    _works("8-bit Adam, as in bitsandbytes", QUANTIZED),
    _works("Lookahead", "its slow weights follow M"),
    _works("ScheduleFreeWrapper (pytorch-optimizer)", "call optimizer.eval() before finalize"),
    _refused("ScheduleFreeWrapper (schedulefree)", "is no torch.optim.Optimizer: use AdamWScheduleFree"),
    _works("SAM, first_step and second_step", "a pair is one step with one Z"),
    _works("SAM, step(closure)", "a pair is one step with one Z"),
    _works("accelerate.prepare before attach", "the optimizer inside is followed; accumulated batches are one step"),
    _works("ZeroRedundancyOptimizer", "the state of this process is followed"),
    _refused("TRAC", "returns to a copy of the first weights that can't be masked"),
]
