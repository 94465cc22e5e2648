"""Which units run sparse, for given times: the rule, without a clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from nets import network_of, sparse
from torch import nn

from cigl.runtime import assignment
from cigl.runtime.schedule import survey


@pytest.fixture
def chosen(monkeypatch):
    """The units that are chosen sparse in a chain of linear layers, for given times and a conversion of 10."""

    def choose(dense, kernels, conversion=10.0):
        model = sparse(nn.Sequential(*[layer for _ in dense for layer in (nn.Linear(4, 4), nn.ReLU())]), 0.5)
        network = network_of(model)
        facts = survey(network, [torch.ones(2, 4)])
        monkeypatch.setattr(assignment, "_conversion", lambda shape, threads: conversion)
        return assignment._cheapest(network, facts, dict(enumerate(dense)), dict(enumerate(kernels)), threads=1)

    return choose


def test_a_subgraph_must_be_worth_its_two_conversions(chosen):
    assert chosen([30, 30], [10, 10]) == {0, 1}  # 20 + 2 * 10 against 60
    assert chosen([30, 30], [19, 22]) == set()  # 41 + 20 against 60
    assert chosen([30], [9]) == {0}
    assert chosen([30], [11]) == set()


def test_a_slow_layer_inside_a_subgraph_stays_unless_leaving_is_worth_it(chosen):
    assert chosen([100, 10, 100], [1, 25, 1]) == {0, 1, 2}
    assert chosen([100, 10, 100], [1, 35, 1]) == {0, 2}


def test_all_dense_where_kernels_are_slower(chosen):
    assert chosen([5, 5, 5], [6, 6, 6], conversion=0.0) == set()


def test_units_without_weights_alone_are_left_to_torch():
    network = network_of(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    x = torch.randn(1, 3, 4, 4)
    assert assignment.assign(network, survey(network, [x]), [x], threads=1).sparse == set()


def test_whole_networks_are_compared_only_where_estimates_are_close():
    dense, sparse = {0: 10.0, 1: 10.0}, {0: 4.0, 1: 12.0}
    assert assignment._rivals({0}, dense, sparse) == [{0}, {0, 1}]  # 14, 16 and 20
    assert assignment._rivals({0, 1}, dense, {0: 9.0, 1: 9.0}) == [{0, 1}, set()]
    assert assignment._rivals({0, 1}, dense, {0: 4.0, 1: 4.0}) == [{0, 1}]


def test_the_fastest_whole_network_is_taken(monkeypatch):
    seconds = {(0,): [9.0, 3.0, 3.0, 3.0, 3.0, 3.0], (0, 1): [1.0, 4.0, 2.5, 4.0, 4.0, 4.0], (): [9.0] + 5 * [2.9]}

    class Fake:
        def __init__(self, network, facts, units, threads):
            self._left = iter(seconds[tuple(sorted(units))])

        def __call__(self, inputs):
            Fake.took = next(self._left)

    monkeypatch.setattr(assignment, "Schedule", Fake)
    monkeypatch.setattr(assignment, "_undisturbed", lambda measure, threads: measure() and Fake.took)
    rivals = [{0}, {0, 1}, set()]
    assert assignment._fastest(None, None, [], rivals, threads=1) == {0, 1}  # by its 2.5: the first run doesn't count
    assert assignment._fastest(None, None, [], [{0}, set()], threads=1) == set()
    assert assignment._fastest(None, None, [], [{0}], threads=1) == {0}


def test_time_of_other_processes_is_not_counted(monkeypatch):
    """A thread that waits for another process has no core."""
    clock = SimpleNamespace(all=0.0, own=0.0)

    def measure():
        clock.all += 20.0
        clock.own += 5.0
        return 20.0

    now = SimpleNamespace(perf_counter=lambda: clock.all, thread_time=lambda: clock.own)
    monkeypatch.setattr(assignment, "time", now)
    monkeypatch.setattr(assignment, "_FINE", True)
    assert assignment._least(measure, 0.0, threads=1) == 5.0
    assert assignment._least(measure, 0.0, threads=2) == 20.0
