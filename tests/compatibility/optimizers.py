"""Optimizers to try, by the names of cases_optimizers.py, with the states that have one number per weight."""

import prodigyopt
import pytorch_optimizer as library
import schedulefree
import torch
import transformers
from torch import optim


class Adam8bit(optim.Optimizer):
    """Adam whose moments are 8-bit codes of a symmetric map with one scale per tensor: code 0 is not the number 0."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                moments = []
                for name, new, beta in (("state1", p.grad, 0.9), ("state2", p.grad.square(), 0.999)):
                    old = (state[name].float() / 127.5 - 1) * state[name + "_scale"] if name in state else 0.0
                    moment = beta * old + (1 - beta) * new
                    scale = moment.abs().max().clamp_min(1e-12)
                    state[name] = ((moment / scale + 1) * 127.5).round().to(torch.uint8)
                    state[name + "_scale"] = scale
                    moments.append(moment)
                p.addcdiv_(moments[0], moments[1].clamp_min(0).sqrt() + 1e-3, value=-group["lr"])


class SAM(optim.Optimizer):
    """Sharpness-aware minimization, as people copy it into their projects."""

    def __init__(self, params, base_optimizer, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base_optimizer(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if "old_p" in self.state[p]:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step(zero_grad=True)
        with torch.enable_grad():
            closure()
        self.second_step()


def torchao(kind):
    def make(params):
        from torchao import optim as low_bit  # slow to import

        return getattr(low_bit, kind)(params, lr=0.01)

    return make


def matrices(params):
    return [p for p in params if p.ndim == 2]


ADAM = {"exp_avg", "exp_avg_sq"}
MAKE = {
    "torch.optim.SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), {"momentum_buffer"}),
    "torch.optim.Adam": (lambda p: optim.Adam(p, lr=0.01, weight_decay=1e-3), ADAM),
    "torch.optim.AdamW": (lambda p: optim.AdamW(p, lr=0.01, amsgrad=True), ADAM | {"max_exp_avg_sq"}),
    "torch.optim.NAdam": (lambda p: optim.NAdam(p, lr=0.01), ADAM),
    "torch.optim.RAdam": (lambda p: optim.RAdam(p, lr=0.03), ADAM),
    "torch.optim.RMSprop": (
        lambda p: optim.RMSprop(p, lr=0.002, momentum=0.9, centered=True),
        {"square_avg", "momentum_buffer", "grad_avg"},
    ),
    "torch.optim.Adadelta": (lambda p: optim.Adadelta(p, lr=5.0), {"square_avg", "acc_delta"}),
    "torch.optim.Adamax": (lambda p: optim.Adamax(p, lr=0.02), {"exp_avg", "exp_inf"}),
    "torch.optim.Adagrad": (lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1), {"sum"}),
    "torch.optim.Rprop": (lambda p: optim.Rprop(p, lr=1e-3), {"prev", "step_size"}),
    "torch.optim.ASGD": (lambda p: optim.ASGD(p, lr=0.5), {"ax"}),
    "torch.optim.Adafactor": (lambda p: optim.Adafactor(p, lr=0.1), set()),
    "torch.optim.Muon": (lambda p: optim.Muon(matrices(p), lr=0.02), {"momentum_buffer"}),
    "Lion": (lambda p: library.Lion(p, lr=3e-3), {"exp_avg"}),
    "LAMB": (lambda p: library.Lamb(p, lr=0.02), ADAM),
    "AdaBelief": (lambda p: library.AdaBelief(p, lr=0.01), {"exp_avg", "exp_avg_var"}),
    "Adan": (lambda p: library.Adan(p, lr=0.02), ADAM | {"exp_avg_diff", "previous_grad"}),
    "D-Adaptation (DAdaptAdam)": (lambda p: library.DAdaptAdam(p, lr=1.0, d0=1e-3, growth_rate=2.0), ADAM | {"s"}),
    "Prodigy (prodigyopt)": (lambda p: prodigyopt.Prodigy(p, d0=1e-4), ADAM | {"s", "p0"}),
    "Prodigy (pytorch-optimizer)": (lambda p: library.Prodigy(p, d0=1e-4), ADAM | {"s", "p0"}),
    "AdamWScheduleFree": (lambda p: schedulefree.AdamWScheduleFree(p, lr=0.02), {"z", "exp_avg_sq"}),
    "SGDScheduleFree": (lambda p: schedulefree.SGDScheduleFree(p, lr=1.0), {"z"}),
    "SOAP": (lambda p: library.SOAP(p, lr=0.01), {"exp_avg"}),
    "Shampoo": (lambda p: library.Shampoo(p, lr=0.3), set()),
    "Adafactor (Transformers)": (
        lambda p: transformers.optimization.Adafactor(
            p, lr=0.01, relative_step=False, scale_parameter=False, beta1=0.9
        ),
        {"exp_avg"},
    ),
    "8-bit Adam (torchao)": (torchao("Adam8bit"), ADAM),
    "4-bit Adam (torchao)": (torchao("Adam4bit"), ADAM),
    "8-bit Adam, as in bitsandbytes": (Adam8bit, set()),
    "Lookahead": (
        lambda p: library.Lookahead(optim.SGD(p, lr=0.1, momentum=0.9)),
        {"momentum_buffer", "slow_params"},
    ),
    "ScheduleFreeWrapper (pytorch-optimizer)": (
        lambda p: library.ScheduleFreeWrapper(optim.SGD(p, lr=1.0)),
        {"z"},
    ),
}
