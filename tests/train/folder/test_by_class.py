"""What each class was taken for."""

import numpy as np
import torch
from sklearn.metrics import confusion_matrix

from cigl.train.folder.by_class import (
    FIGURE,
    FILE,
    by_class,
    confusions,
    draw_confusions,
    read_confusions,
    write_confusions,
)


def test_counts_are_those_of_scikit_learn():
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 5, generator=random), torch.randint(0, 5, (200,), generator=random)
    expected = confusion_matrix(labels, logits.argmax(1), labels=range(5))
    assert (confusions(logits, labels, 5) == expected).all()


def test_names_that_need_quotes_come_back(tmp_path):
    counts, names = np.array([[3, 1], [0, 4]]), ['a "b", c', "ü\nd"]
    write_confusions(tmp_path, counts, names)
    found, found_names = read_confusions(tmp_path)
    assert (found == counts).all()
    assert found_names == names
    draw_confusions(tmp_path, found, found_names)
    assert (tmp_path / FIGURE).read_text().startswith("<?xml")


def test_of_many_classes_there_are_counts_alone(tmp_path):
    write_confusions(tmp_path, np.eye(100, dtype=np.int64), [str(k) for k in range(100)])
    draw_confusions(tmp_path, *read_confusions(tmp_path))
    assert (tmp_path / FILE).is_file()
    assert not (tmp_path / FIGURE).exists()
    assert read_confusions(tmp_path / "none") is None


def test_the_lowest_classes_are_named_with_what_they_are_taken_for():
    counts = np.diag([10] * 8)
    counts[3] = [0, 0, 0, 4, 6, 0, 0, 0]
    counts[5] = 0  # a class without test data
    text = by_class(counts, list("abcdefgh"))
    assert text.startswith("Right by class: d 40.0 % (else mostly e), a 100.0 %,")
    assert text.endswith(", and 1 more with 100.0 % or above.")
    assert " f " not in text
