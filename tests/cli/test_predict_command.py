"""cigl predict and cigl export of runs on images, as a person and as a script use them."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner

import cigl
from cigl.cli import app
from cigl.cli.predict import table
from cigl.common import tensors
from cigl.data.splits.folder import scan
from cigl.train.evaluate import evaluate_run

runner = CliRunner()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of 72 to 90 pixels, red or blue, more or less."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for k in range(52):
        path = root / ("train" if k < 40 else "val") / ("red", "blue")[k % 2] / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (72 + k % 7, 90 - k % 5, 3)) // 2
        image[:, :, 2 * (k % 2)] += rng.integers(0, 60)
        Image.fromarray(image.astype(np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a"
    options = ["--model", "mlp-8", "--epochs", "2", "--batch-size", "10", "--lr", "0.01", "--workers", "0"]
    more = ["--temperature", "holdout", "--validation", "0.25", "--update-every", "2", "--quiet"]
    result = runner.invoke(app, ["train", "--dataset", f"folder:{photos}", *options, *more, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def file(run):
    path = run.parent / "model.cigl"
    result = runner.invoke(app, ["export", str(run), str(path)])
    assert result.exit_code == 0, result.output
    assert f"cigl predict {path} photo.jpg" in result.output
    return path


def predicted(*arguments, code=0):
    result = runner.invoke(app, ["predict", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_same_as_in_evaluation(photos, run, file):
    """Of 7/8 of the middle, resized and normalised; with the temperature: every probability, from the image files."""
    samples = evaluate_run(run, temperature=True).samples
    names = ["blue", "red"]
    files = [photos / path.decode() for path in scan(photos).test.paths]
    for model in (run, file):
        rows = predicted(model, *files, "--top", 2)["predictions"]
        assert [row["image"] for row in rows] == list(map(str, files))
        assert [names.index(row["label"]) for row in rows] == samples.predicted.tolist()
        confidence = np.array([row["top"][0]["probability"] for row in rows])
        np.testing.assert_allclose(confidence, samples.confidence, atol=1e-5)
        assert all(row["top"][0]["probability"] + row["top"][1]["probability"] == pytest.approx(1) for row in rows)


def test_in_python(photos, run, file):
    samples = evaluate_run(run, temperature=True).samples
    found = cigl.load(file).predict([photos / path.decode() for path in scan(photos).test.paths])
    np.testing.assert_allclose(found.confidences, samples.confidence, atol=1e-5)


def test_folders_and_images_that_are_broken(photos, file, tmp_path):
    shutil.copytree(photos / "val", tmp_path / "val")
    (tmp_path / "val" / "red" / "broken.jpg").write_bytes(b"nothing")
    found = predicted(file, tmp_path / "val", tmp_path / "lost.png", code=1)
    assert len(found["predictions"]) == 12
    assert [each["image"] for each in found["failed"]] == [
        str(tmp_path / "val" / "red" / "broken.jpg"),
        str(tmp_path / "lost.png"),
    ]
    result = runner.invoke(app, ["predict", str(file), str(tmp_path / "val"), "--top", "2"])
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1 + 2 * 12
    assert "broken.jpg can't be read as an image" in result.stderr
    assert "1 of 13 images could not be read." in result.stderr


def test_next_commands_are_no_part_of_the_data(photos, file):
    result = runner.invoke(app, ["predict", str(file), str(photos / "val")])
    assert len(result.stdout.splitlines()) == 1 + 12
    assert f"next:\n  cigl predict {file} ... --top 3 " in result.stderr
    assert "--top 3" not in runner.invoke(app, ["predict", str(file), str(photos / "val"), "--top", "2"]).stderr
    bench = runner.invoke(app, ["bench", str(file), "--seconds", "0"])
    assert f"next:\n  cigl predict {file} photo.jpg" in bench.stdout


def test_mistakes_are_one_line(photos, run, file, tmp_path):
    (tmp_path / "empty").mkdir()
    vectors = tmp_path / "vectors.cigl"
    cigl.save(torch.nn.Linear(4, 3), vectors)
    for arguments, message in (
        ((tmp_path / "none", photos), "there is no"),
        ((tmp_path / "empty", photos), "is not a run folder"),
        ((file, tmp_path / "empty"), "holds no images"),
        ((vectors, photos), f"`cigl export RUN {vectors}`; save your own model with cigl.save("),
    ):
        result = runner.invoke(app, ["predict", *map(str, arguments)])
        assert result.exit_code == 2
        assert message in result.output
        assert result.output.startswith("error: ")
        assert len(result.output.splitlines()) == 1


def test_a_run_says_it_all_itself(photos, run, file, tmp_path):
    """Neither the data nor the run's folder at its place are needed."""
    with safe_open(str(run / "model.safetensors"), "pt") as opened:
        metadata = opened.metadata()
    assert json.loads(metadata["classes"]) == ["blue", "red"]
    assert json.loads(metadata["preprocessing"])["size"] == [64, 64]  # as is chosen for few images
    assert json.loads(metadata["temperature"]) == json.loads((run / "result.json").read_text())["temperature"]
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(photos), str(tmp_path / "gone")))
    image = photos / "val" / "red" / "40.png"
    assert predicted(tmp_path / "run", image)["predictions"] == predicted(run, image)["predictions"]


def test_a_run_of_an_earlier_version(photos, run, tmp_path):
    """Its model's file has the weights alone: the dataset says the rest."""
    shutil.copytree(run, tmp_path / "run")
    model = tmp_path / "run" / "model.safetensors"
    tensors.save(model, tensors.load(model))
    image = photos / "val" / "red" / "40.png"
    assert predicted(tmp_path / "run", image)["predictions"] == predicted(run, image)["predictions"]
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(photos), str(tmp_path / "gone")))
    result = runner.invoke(app, ["predict", str(tmp_path / "run"), str(image)])
    assert result.exit_code == 2
    assert "there is no folder" in result.output


def test_onnx_from_a_run_and_from_a_file(photos, run, file, tmp_path):
    image = photos / "val" / "red" / "40.png"
    right = predicted(run, image, "--top", 2)["predictions"][0]["top"]
    for number, source in enumerate((run, file)):
        path = tmp_path / f"{number}.onnx"
        result = runner.invoke(app, ["export", str(source), str(path), "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert (found["shape"], found["outputs"]) == ([3, 64, 64], ["logits", "probabilities"])
        preprocessing = cigl.Preprocessing.from_dict(found["preprocessing"])
        x = preprocessing.normalised(torch.from_numpy(preprocessing.pixels(image))[None])
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        probabilities = dict(zip(found["classes"], session.run(None, {"input": x.numpy()})[1][0], strict=True))
        for each in right:
            assert probabilities[each["label"]] == pytest.approx(each["probability"], abs=1e-5)


def test_onnx_that_can_not_be_written(run, file, tmp_path):
    vectors = tmp_path / "vectors.cigl"
    cigl.save(torch.nn.Linear(4, 3), vectors)
    for arguments, message in (
        ((file, tmp_path / "a.cigl"), "give the folder of a finished run"),
        ((run, tmp_path / "a.onnx", "--half"), "--half is for .cigl files"),
        ((vectors, tmp_path / "a.onnx"), "example_inputs=(x,)"),
    ):
        result = runner.invoke(app, ["export", *map(str, arguments)])
        assert result.exit_code == 2
        assert message in result.output
        assert len(result.output.splitlines()) == 1


def test_a_table_fits_the_terminal():
    rows = [("photos/" + "a" * 100 + ".jpg", [("c" * 90, 0.5), ("d", 0.25)]), ("b.jpg", [("d", 1.0)])]
    lines = table(rows, 80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].split()[0].endswith("aaa.jpg")
    assert "a" * 100 in table(rows, None)[1]
    short = table([("cat.jpg", [("cat", 0.931)])], 80)
    assert short == ["image    class  probability", "cat.jpg  cat         93.1 %"]
