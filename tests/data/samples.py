"""Small files in the official formats, written by hand."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image

from cigl.data.sources.facts import Facts, pixel_means
from cigl.data.sources.memory import Normal


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count, classes):
    return (np.arange(count) % classes).astype(np.uint8)


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, packed=True):
    """The four files of MNIST with 20 training and 10 test images of ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 20), ("t10k", 10)):
        for kind, array in (("images-idx3", pixels(count, 28, 28, seed=count)), ("labels-idx1", labels(count, 10))):
            name = f"{part}-{kind}-ubyte"
            content = idx_bytes(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def cifar_bytes(images, *label_columns):
    """Records of the binary version: label bytes, then the red, green and blue planes."""
    return b"".join(bytes(int(column[k]) for column in label_columns) + images[k].tobytes() for k in range(len(images)))


def tar_bytes(files, mode="w:gz"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return buffer.getvalue()


def jpeg(colour, size=(64, 64), mode="RGB", kind="JPEG"):
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


def cifar100_archive(count=200, test=100):
    """cifar-100-binary.tar.gz in small: coarse and fine label, and the names of the classes."""
    train_images, test_images = pixels(count, 3, 32, 32, seed=1), pixels(test, 3, 32, 32, seed=2)
    fine, fine_test = labels(count, 100), labels(test, 100)
    content = {
        "cifar-100-binary/fine_label_names.txt": b"apple\n",
        "cifar-100-binary/train.bin": cifar_bytes(train_images, fine // 5, fine),
        "cifar-100-binary/test.bin": cifar_bytes(test_images, fine_test // 5, fine_test),
    }
    facts = Facts(
        (3, 32, 32), 100, Normal(tuple(pixel_means(train_images)), (0.25,) * 3), ((count // 100,), (test // 100,))
    )
    return tar_bytes(content), facts, (train_images, fine, test_images, fine_test)


def tiny_imagenet_files(classes=3, each=2):
    """tiny-imagenet-200/ in small; class k is one grey, and one image is stored as grey."""
    names = [f"n0{k}" for k in range(classes)]
    files = {"tiny-imagenet-200/wnids.txt": "\n".join(reversed(names)).encode()}
    annotations = []
    for k, name in enumerate(names):
        grey = 60 * k + 30
        for n in range(each):
            image = jpeg(grey, mode="L") if n == 0 else jpeg((grey,) * 3)
            files[f"tiny-imagenet-200/train/{name}/images/{name}_{n}.JPEG"] = image
        files[f"tiny-imagenet-200/train/{name}/{name}_boxes.txt"] = b"x"
        files[f"tiny-imagenet-200/val/images/val_{classes - k}.JPEG"] = jpeg((grey,) * 3)
        annotations.append(f"val_{classes - k}.JPEG\t{name}\t0\t32\t44\t62")
    files["tiny-imagenet-200/val/val_annotations.txt"] = "\n".join(annotations).encode()
    files["tiny-imagenet-200/test/images/test_0.JPEG"] = jpeg(0, mode="L")
    return files


def write_files(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
