"""One image, however it is given (a file, a PIL image, an array, a tensor), as a PIL image in RGB or grey."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.extras import from_extra
from cigl.common.text import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff")


def pillow() -> Any:
    """The module PIL.Image."""
    with from_extra("data", "images"):
        from PIL import Image
    return Image


def read(path: str | os.PathLike[str], mode: str = "RGB") -> Image:
    """The image in a file."""
    with _named(path), pillow().open(path) as image:
        return converted(image, mode)


def size_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height, from the file's beginning."""
    with _named(path), pillow().open(path) as image:
        width, height = image.size
        return width, height


def examined(path: str | os.PathLike[str]) -> tuple[tuple[int, int], bytes]:
    """Width and height of an image that can be read to its end, and a hash of the file."""
    with _named(path):
        content = Path(path).read_bytes()
        with pillow().open(io.BytesIO(content)) as image:
            size = image.size
            image.draft(None, (1, 1))  # a JPEG is decoded whole, but only to an eighth of its size
            image.load()
    return size, hashlib.blake2b(content, digest_size=16).digest()


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong in reading names the file."""
    kinds = pillow()
    try:
        yield
    except kinds.UnidentifiedImageError as error:
        raise CiglError(f"{path} can't be read as an image: it is damaged or not of a known kind.") from error
    except Exception as error:  # Pillow's decoders fail in many ways on damaged files
        reason = getattr(error, "strerror", None) or one_line(error)
        raise CiglError(f"{path} can't be read as an image: {reason}.") from error


def converted(image: Image, mode: str) -> Image:
    """In RGB or L (grey), 8 bits a channel."""
    if image.mode.startswith("I"):  # 16 bits a pixel, which convert would cut off at 255
        image = pillow().fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert(mode)


def to_image(given: Any, mode: str = "RGB") -> Image:
    """A path, a PIL image, or bytes as an array or a tensor."""
    if isinstance(given, (str, os.PathLike)):
        return read(given, mode)
    kinds = pillow()
    if isinstance(given, kinds.Image):
        return converted(given, mode)
    shape = tuple(getattr(given, "shape", ()))
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.permute(1, 2, 0) if given.ndim == 3 else given).numpy()
    elif not isinstance(given, np.ndarray):
        raise CiglError(f"an image is a path, a PIL image, an array or a tensor, not a {type(given).__name__}.")
    if given.dtype != np.uint8:
        raise CiglError(
            f"an image has bytes from 0 to 255 (uint8), but this one is {given.dtype}: convert it, or call the model "
            "itself on inputs that are preprocessed already."
        )
    if given.ndim == 3 and given.shape[2] == 1:
        given = given[:, :, 0]
    if not given.size or not (given.ndim == 2 or (given.ndim == 3 and given.shape[2] in (3, 4))):
        raise CiglError(
            f"the shape {shape} is not that of an image: an array is (height, width) or (height, width, channels), a "
            "tensor (height, width) or (channels, height, width), with 1, 3 or 4 channels."
        )
    return converted(kinds.fromarray(np.ascontiguousarray(given)), mode)


def separate(images: Any) -> list[Any]:
    """The single images of a batch, a list or one image."""
    if isinstance(images, (np.ndarray, Tensor)):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, (str, os.PathLike)) or not isinstance(images, Iterable):
        return [images]
    return list(images)


def image_files(folder: str | os.PathLike[str]) -> list[str]:
    """The paths of all images under a folder, sorted; hidden ones are left out."""
    return sorted(
        os.path.join(place, file)
        for place, _, files in os.walk(os.fspath(folder))
        for file in files
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    )
