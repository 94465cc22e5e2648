import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cigl import CiglError
from cigl.sparsify.methods.distribution import allocate

SHAPES = {"a": (10, 10), "b": (40, 10), "c": (8, 4, 3, 3)}


def test_hand_computed_uniform():
    assert allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "uniform") == {"a": 20, "b": 80}


def test_hand_computed_erk():
    # raw a: 20/100, b: 50/400, so shares 20 : 50 of 100
    assert allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "erk") == {"a": 29, "b": 71}


def test_erk_counts_kernel_sides_and_er_does_not():
    # ERK weighs sum(shape), here 20 and 18 of 38, for 0.8 * 388 = 78; ER weighs (in + out) * 9 for the kernel
    erk = allocate({"a": (10, 10), "c": (8, 4, 3, 3)}, 0.8, "erk")
    er = allocate({"a": (10, 10), "c": (8, 4, 3, 3)}, 0.8, "er")
    assert erk == {"a": 41, "c": 37}
    assert er == {"a": 12, "c": 66}


def test_layers_above_dense_are_dense_and_the_rest_is_shared():
    counts = allocate({"small": (2, 2), "large": (100, 100)}, 0.5, "erk")
    assert counts["small"] == 4
    assert sum(counts.values()) == round(0.5 * 10004)


@pytest.mark.parametrize(("sparsity", "published"), [(0.8, 0.42), (0.9, 0.24)])
def test_inference_flops_of_resnet50_are_rigls(sparsity, published):
    """Evci et al. 2020, table of ImageNet results: ERK keeps 0.42x and 0.24x of the dense FLOPs."""
    shapes, places = {"conv1": (64, 3, 7, 7), "fc": (1000, 2048)}, {"conv1": 112**2, "fc": 1}
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        inside, side = (64 if stage == 0 else width * 2), 56 // 2**stage
        for block in range(blocks):
            before = side * 2 if block == 0 and stage else side  # the stride is in the 3x3 convolution
            convolutions = {
                "1": ((width, inside, 1, 1), before),
                "2": ((width, width, 3, 3), side),
                "3": ((width * 4, width, 1, 1), side),
            }
            if block == 0:
                convolutions["s"] = ((width * 4, inside, 1, 1), side)
            for key, (shape, resolution) in convolutions.items():
                shapes[f"{stage}.{block}.{key}"] = shape
                places[f"{stage}.{block}.{key}"] = resolution**2
            inside = width * 4
    counts = allocate(shapes, sparsity, "erk")
    dense = sum(math.prod(shapes[name]) * places[name] for name in shapes)
    assert sum(counts[name] * places[name] for name in shapes) / dense == pytest.approx(published, abs=0.015)


shapes_strategy = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple),
    min_size=1,
    max_size=8,
)


@given(shapes_strategy, st.floats(0, 0.999), st.sampled_from(["uniform", "er", "erk"]))
def test_total_is_exact_and_layers_are_within_bounds(shapes, sparsity, law):
    counts = allocate(shapes, sparsity, law)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = round((1 - sparsity) * sum(sizes.values()))
    assert sum(counts.values()) == total
    assert all(0 <= counts[name] <= sizes[name] for name in shapes)
    if total >= len(shapes):
        assert all(counts[name] >= 1 for name in shapes)


@given(shapes_strategy, st.floats(0.1, 0.9))
def test_uniform_is_uniform(shapes, sparsity):
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if all((1 - sparsity) * size >= 1 for size in sizes.values()):
        counts = allocate(shapes, sparsity, "uniform")
        assert all(abs(counts[name] - (1 - sparsity) * sizes[name]) <= 1.5 for name in shapes)


def test_fixed_densities_stay_and_the_total_too():
    counts = allocate(SHAPES, 0.5, "erk", {"a": 0.9})
    assert counts["a"] == 90
    assert sum(counts.values()) == round(0.5 * (100 + 400 + 288))


def test_impossible_densities_are_refused():
    with pytest.raises(CiglError, match="change the densities or the sparsity"):
        allocate(SHAPES, 0.99, "erk", {"b": 0.9})


@given(shapes_strategy, st.floats(0, 0.999), st.sampled_from(["uniform", "er", "erk"]), st.integers(0, 8))
def test_densities_that_fit_never_fail_by_rounding(shapes, sparsity, law, number):
    fixed = dict.fromkeys(list(shapes)[:number], 1 - sparsity)
    counts = allocate(shapes, sparsity, law, fixed)
    assert sum(counts.values()) == round((1 - sparsity) * sum(math.prod(shape) for shape in shapes.values()))
    differences = [abs(counts[name] - density * math.prod(shapes[name])) for name, density in fixed.items()]
    assert sum(differences) <= 2 * len(fixed)  # one weight each for rounding, one for the total


def test_two_weights_of_rounding():
    # 0.1 of 15 rounds to 2 and 0.1 of 151 to 15: 34 in all, but 0.1 of 332 is 33
    shapes = {"a": (3, 5), "b": (1, 151), "c": (3, 5), "d": (1, 151)}
    assert allocate(shapes, 0.9, "erk", dict.fromkeys(shapes, 0.1)) == {"a": 1, "b": 15, "c": 2, "d": 15}


def test_a_parameter_of_several_matrices_has_the_density_of_one():
    counts = allocate({"experts": (10, 10), "one": (10, 10)}, 0.8, "erk", sizes={"experts": 400, "one": 100})
    assert counts == {"experts": 80, "one": 20}


def test_unknown_law_names_the_nearest():
    with pytest.raises(CiglError, match="did you mean 'erk'"):
        allocate(SHAPES, 0.5, "erkk")
