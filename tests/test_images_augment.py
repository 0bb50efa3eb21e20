"""Crops and flips: which ones, and that their pixels are those of the plain way to make them."""

from __future__ import annotations

import io
import math
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jpegs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odd_pictures import ODD, encode, exif, jpeg, natural, resized_frame
from PIL import Image, ImageOps
from test_images_decode import BACKENDS, every_backend

from shardkit import images
from shardkit.errors import BadImageError, UsageError
from shardkit.images import decoders
from shardkit.images import kernel as compiled
from shardkit.images.crop import shrink_for
from shardkit.images.crop_boxes import NUM_DRAWS, centre_boxes, flips, random_boxes, uniforms

MASK = 2**64 - 1


def keys_of(num: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 2**64, num, dtype=np.uint64)


# --- uniforms -----------------------------------------------------------------------------


def splitmix64(state: int) -> int:
    """As published, in plain Python."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.integers(0, MASK), st.integers(1, 30))
def test_uniforms_are_splitmix64(key: int, num: int) -> None:
    start = splitmix64(key)
    expected = [
        (splitmix64(start + (d + 1) * 0x9E3779B97F4A7C15) >> 11) / 2**53 for d in range(num)
    ]
    assert uniforms(np.array([key], np.uint64), num).tolist() == [expected]


def furthest(a: Any, b: Any) -> float:
    """Kolmogorov and Smirnov's statistic of two samples: how far apart their distributions are at
    most."""
    a, b = np.sort(a), np.sort(b)
    places = np.concatenate([a, b])
    below = [np.searchsorted(each, places, side="right") / len(each) for each in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def limit(num: int) -> float:
    """Two samples of ``num`` each from one distribution exceed it once in 100,000 times."""
    return math.sqrt(-math.log(1e-5 / 2) / num)


# --- random boxes -------------------------------------------------------------------------


def as_published(
    width: int, height: int, scale: Any, ratio: Any, rng: random.Random
) -> tuple[int, int, int, int]:
    """torchvision.transforms.RandomResizedCrop.get_params, with Python's random numbers."""
    area = height * width
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    for _ in range(10):
        target_area = area * rng.uniform(scale[0], scale[1])
        aspect_ratio = math.exp(rng.uniform(log_ratio[0], log_ratio[1]))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = rng.randint(0, height - h)
            j = rng.randint(0, width - w)
            return j, i, w, h
    in_ratio = float(width) / float(height)
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w = width
        h = height
    i = (height - h) // 2
    j = (width - w) // 2
    return j, i, w, h


def boxes_of(width: int, height: int, num: int, scale: Any, ratio: Any) -> Any:
    sizes = np.broadcast_to(np.array([width, height], np.int32), (num, 2))
    return random_boxes(sizes, uniforms(keys_of(num), NUM_DRAWS), scale, ratio)


PLAIN = (0.08, 1.0), (3 / 4, 4 / 3)
NUM = 20_000


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio"),
    [
        (500, 375, *PLAIN),
        (900, 300, *PLAIN),
        (300, 800, (0.5, 1.0), (3 / 4, 4 / 3)),
        (500, 375, (0.2, 0.4), (0.5, 0.6)),
        (7, 5, *PLAIN),
    ],
)
def test_boxes_are_distributed_as_torchvisions(
    width: int, height: int, scale: Any, ratio: Any
) -> None:
    ours = boxes_of(width, height, NUM, scale, ratio).astype(np.float64)
    rng = random.Random(0)
    theirs = np.array([as_published(width, height, scale, ratio, rng) for _ in range(NUM)], float)
    for what in (
        lambda b: b[:, 2] * b[:, 3] / (width * height),
        lambda b: b[:, 2] / b[:, 3],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 0] / np.maximum(width - b[:, 2], 1),
        lambda b: b[:, 1] / np.maximum(height - b[:, 3], 1),
        lambda b: b[:, 2],
    ):
        assert furthest(what(ours), what(theirs)) < limit(NUM)


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 5000), (5000, 1), (2, 3), (10, 1000), (1000, 10), (2400, 1600)]
)
def test_boxes_lie_within(size: tuple[int, int]) -> None:
    box = boxes_of(*size, 5000, *PLAIN)
    assert box.dtype == np.int32
    assert (box[:, :2] >= 0).all() and (box[:, 2:] >= 1).all()
    assert (box[:, :2] + box[:, 2:] <= size).all()
    if max(size) >= 1000 > 100 * min(size):  # nothing fits: the centre, as published
        assert set(map(tuple, box.tolist())) <= {
            as_published(*size, *PLAIN, random.Random(seed)) for seed in range(50)
        }


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_share_of_flips(share: float) -> None:
    draws = uniforms(keys_of(40_000), NUM_DRAWS)
    flipped = flips(draws, share)
    assert abs(flipped.mean() - share) < 5 * math.sqrt(share * (1 - share) / 40_000) + 1e-12
    box = random_boxes(np.full((40_000, 2), 300, np.int32), draws, *PLAIN)
    if 0 < share < 1:  # and they have nothing to do with the crop
        assert furthest(box[flipped, 0][:5000], box[~flipped, 0][:5000]) < limit(5000)


# --- boxes of the centre ------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 300), st.integers(0, 100))
def test_centre_boxes_are_torchvisions(width: int, height: int, size: int, more: int) -> None:
    resize = size + more
    short, long = sorted((width, height))
    new_long = int(resize * long / short)
    new_w, new_h = (resize, new_long) if width <= height else (new_long, resize)
    top, left = round((new_h - size) / 2.0), round((new_w - size) / 2.0)
    x, y, w, h = centre_boxes(np.array([[width, height]], np.int32), resize, size)[0].tolist()
    assert (x * new_w / width, y * new_h / height) == pytest.approx((left, top))
    assert (w * new_w / width, h * new_h / height) == pytest.approx((size, size))


# --- pixels -------------------------------------------------------------------------------

SIZE = 32


def plain_train(data: bytes, box: Any, flip: bool, size: int = SIZE) -> Any:
    """Crop, then resize."""
    left, top, width, height = box
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = image.crop((left, top, left + width, top + height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(ImageOps.mirror(image) if flip else image).astype(np.int16)


def plain_eval(data: bytes, resize: int, size: int = SIZE) -> Any:
    """Resize, then crop."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    short, long = min(image.size), max(image.size)
    new_long = int(resize * long / short)
    shape = (resize, new_long) if image.width <= image.height else (new_long, resize)
    image = image.resize(shape, Image.Resampling.BILINEAR)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size))).astype(np.int16)


PHOTOS = [
    jpeg(w, h, seed=w, quality=92, subsampling=w % 3)
    for w, h in [(60, 45), (45, 60), (63, 63), (50, 33), (31, 90), (20, 20), (61, 40), (40, 61)]
]
LARGE = [jpeg(w, h, seed=w) for w, h in [(300, 200), (200, 310), (640, 480), (700, 501)]]


def places(transform: Any, pictures: list[bytes], keys: Any) -> Any:
    sizes = np.array([Image.open(io.BytesIO(data)).size for data in pictures], np.int32)
    boxes, flipped = transform._places(sizes, keys)
    return list(zip(boxes.tolist(), flipped.tolist(), strict=True))


@every_backend
def test_train_is_crop_then_resize(backend: str) -> None:
    """To the bit where the picture is decoded in full size."""
    transform, pictures = images.train(SIZE, backend=backend), PHOTOS * 20
    keys = keys_of(len(pictures))
    out = transform.batch({"jpg": pictures}, keys)["image"]
    assert out.shape == (len(pictures), SIZE, SIZE, 3) and out.dtype == np.uint8
    where = places(transform, pictures, keys)
    assert {shrink_for(box, SIZE) for box, _ in where} == {1}
    assert {flip for _, flip in where} == {False, True}
    for pixels, data, (box, flip) in zip(out, pictures, where, strict=True):
        np.testing.assert_array_equal(pixels, plain_train(data, box, flip))


@every_backend
def test_train_on_large_pictures(backend: str) -> None:
    """Decoded at 1/2, 1/4 or 1/8: libjpeg averages otherwise than Pillow."""
    transform, pictures = images.train(SIZE, backend=backend), LARGE * 15
    keys = keys_of(len(pictures), 1)
    out = transform.batch({"jpg": pictures}, keys)["image"].astype(np.int16)
    where = places(transform, pictures, keys)
    assert {shrink_for(box, SIZE) for box, _ in where} >= {2, 4, 8}
    for pixels, data, (box, flip) in zip(out, pictures, where, strict=True):
        apart = pixels - plain_train(data, box, flip)
        assert np.abs(apart).mean() < 4 and abs(apart.mean()) < 0.5  # neither blurred nor shifted


@pytest.mark.skipif(len(BACKENDS) < 2, reason="one backend has nothing to be compared with")
def test_all_backends_give_the_same_pixels() -> None:
    pictures = PHOTOS * 3 + LARGE * 3 + [ODD[kind]() for kind in ODD]
    keys = keys_of(len(pictures))
    for make in (images.train, images.eval):
        outs = [
            make(SIZE, backend=each.name, **({"resize": 36} if make is images.eval else {})).batch(
                {"jpg": pictures}, keys
            )["image"]
            for each in decoders.installed()
        ]
        for other in outs[1:]:
            np.testing.assert_array_equal(outs[0], other)


@every_backend
@pytest.mark.parametrize("resize", [SIZE, 36, 40])
def test_eval_is_resize_then_crop(resize: int, backend: str) -> None:
    transform = images.eval(SIZE, resize=resize, backend=backend)
    out = transform.batch({"jpg": PHOTOS}, keys_of(len(PHOTOS)))["image"]
    for pixels, data in zip(out, PHOTOS, strict=True):
        assert np.abs(pixels - plain_eval(data, resize)).max() <= 1  # boxes are not whole pixels
    for pixels, data in zip(
        transform.batch({"jpg": LARGE}, keys_of(4))["image"], LARGE, strict=True
    ):
        assert np.abs(pixels - plain_eval(data, resize)).mean() < 4


def test_eval_draws_nothing() -> None:
    transform = images.eval(SIZE, resize=36)
    first = transform.batch({"jpg": PHOTOS}, keys_of(8, 1))["image"]
    np.testing.assert_array_equal(first, transform.batch({"jpg": PHOTOS}, keys_of(8, 2))["image"])


@pytest.mark.parametrize(
    ("size", "shrink"),
    [(31, 1), (63, 1), (64, 2), (127, 2), (128, 4), (255, 4), (256, 8), (9999, 8)],
)
def test_how_small_a_picture_may_be_decoded(size: int, shrink: int) -> None:
    assert shrink_for((0, 0, size, size + 1), SIZE) == shrink
    assert shrink_for((0, 0, size + 500, size), SIZE) == shrink


def by_torch(data: bytes, size: int, antialias: bool) -> Any:
    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    values = torch.from_numpy(pixels)[None].float()
    out = torch.nn.functional.interpolate(
        values, (size, size), mode="bilinear", antialias=antialias, align_corners=False
    )
    return out[0].round().permute(1, 2, 0).numpy()


SQUARE = encode(natural(90, 90, 7), "PNG")


def test_antialiasing_is_torchs() -> None:
    out = images.eval(24, resize=24).batch({"png": [SQUARE]}, keys_of(1))["image"][0]
    assert np.abs(out - by_torch(SQUARE, 24, True)).max() <= 1


def test_without_antialiasing() -> None:
    pytest.importorskip("cv2", reason="antialias=False is OpenCV's")
    transform = images.eval(24, resize=24, antialias=False)
    assert transform.state.endswith("opencv linear")
    out = transform.batch({"png": [SQUARE]}, keys_of(1))["image"][0]
    apart = np.abs(out - by_torch(SQUARE, 24, False))  # OpenCV rounds places to 1/32 of a pixel
    assert apart.mean() < 1 and np.abs(out - by_torch(SQUARE, 24, True)).mean() > 3
    smooth = [images.train(SIZE, antialias=a).batch({"jpg": PHOTOS}, keys_of(8)) for a in (0, 1)]
    assert np.abs(smooth[0]["image"].astype(int) - smooth[1]["image"]).mean() < 8


def test_without_antialiasing_nor_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(UsageError, match="pip install opencv-python-headless"):
        images.train(SIZE, antialias=False)


@every_backend
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int, backend: str) -> None:
    data = jpeg(60, 45, exif=exif(orientation))
    turned = encode(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
    keys = keys_of(6)
    for make in (images.train, images.eval):
        transform = make(SIZE, backend=backend, exif=True)
        out = transform.batch({"jpg": [data] * 6}, keys)["image"]
        np.testing.assert_array_equal(out, transform.batch({"jpg": [turned] * 6}, keys)["image"])
    if orientation > 1:
        plain = images.eval(SIZE, backend=backend).batch({"jpg": [data]}, keys[:1])["image"]
        assert not np.array_equal(plain[0], out[0])


def test_pillows_own_limit_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, keys = [PHOTOS[0], ODD["RGB png"]()], keys_of(2)
    for each in decoders.installed():
        transform = images.train(SIZE, backend=each.name)
        before = transform.batch({"jpg": pictures}, keys)["image"]
        with monkeypatch.context() as patch:
            patch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
            after = transform.batch({"jpg": pictures}, keys)["image"]  # warnings are errors here
        np.testing.assert_array_equal(before, after)


# --- samples and batches ------------------------------------------------------------------


@every_backend
def test_a_batch_is_its_samples(backend: str) -> None:
    transform, pictures = images.train(SIZE, backend=backend), PHOTOS + LARGE
    keys = np.array(
        [np.random.default_rng(i).integers(0, 2**64, dtype=np.uint64) for i in range(12)]
    )
    columns = {"jpg": pictures, "cls": np.arange(12), "txt": list("abcdefghijkl")}
    batch = transform.batch(columns, keys)
    assert list(batch) == ["cls", "txt", "image"]
    assert batch["cls"] is columns["cls"] and batch["txt"] is columns["txt"]
    for i in range(12):
        sample = {"__key__": "k", "jpg": pictures[i], "cls": i}
        one = transform(sample, np.random.default_rng(i))
        assert one.keys() == {"__key__", "cls", "image"} and one["cls"] == i
        np.testing.assert_array_equal(one["image"], batch["image"][i])
        assert "jpg" in sample


def test_a_batch_is_independent_of_its_neighbours_and_of_threads() -> None:
    transform, pictures = images.train(SIZE), (PHOTOS + LARGE) * 4
    keys = keys_of(len(pictures))
    whole = transform.batch({"jpg": pictures}, keys)["image"]

    def part(start: int) -> Any:
        rows = slice(start, start + 3)
        return transform.batch({"jpg": pictures[rows]}, keys[rows])["image"]

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            parts = list(pool.map(part, range(0, len(pictures), 3)))
            np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_field_is_found_or_named() -> None:
    transform, png = images.train(SIZE), encode(natural(40, 40), "PNG")
    both = {"jpg": [PHOTOS[0], None], "png": [None, png], "x.jpg": [png, PHOTOS[0]]}
    found = transform.batch(both, keys_of(2))
    assert list(found) == ["x.jpg", "image"]
    alone = transform.batch({"png": [png, png]}, keys_of(2))["image"]
    np.testing.assert_array_equal(found["image"][1], alone[1])
    named = images.train(SIZE, field="x.jpg").batch(both, keys_of(2))
    assert list(named) == ["jpg", "png", "image"]
    np.testing.assert_array_equal(named["image"][0], alone[0])


@pytest.mark.parametrize(
    ("columns", "field", "message"),
    [
        ({"cls": [1]}, None, "there is no picture among the fields cls: give field="),
        ({"cls": [1]}, "jpg", "there is no field 'jpg' among the fields cls"),
        ({"jpg": [Image.new("RGB", (2, 2))]}, None, "without decode='pil'"),
    ],
)
def test_what_are_no_pictures(columns: Any, field: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        images.train(SIZE, field=field).batch(columns, keys_of(1))


def test_two_pictures_in_one_sample_are_a_bad_sample() -> None:
    columns = {"jpg": [PHOTOS[0], PHOTOS[1]], "png": [None, b""]}
    with pytest.raises(BadImageError, match="several pictures, jpg, png: give field=") as caught:
        images.train(SIZE).batch(columns, keys_of(2))
    assert caught.value.slot == 1


BAD = {
    "cut off": PHOTOS[0][:-30],
    "no picture": b"hello",
    "absent": None,
    "huge": resized_frame(PHOTOS[0], 20_000, 20_000),
    "png": encode(natural(40, 40), "PNG")[:-40],
}


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("slot", [0, 4])
def test_a_bad_picture_is_named_by_its_slot(what: str, slot: int, backend: str | None) -> None:
    pictures: list[Any] = PHOTOS[:5]
    pictures = [*pictures[:slot], BAD[what], *pictures[slot + 1 :]]
    with pytest.raises(BadImageError) as caught:
        images.train(SIZE, backend=backend).batch({"jpg": pictures}, keys_of(5))
    assert caught.value.slot == slot
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.slot == slot and str(copy) == str(caught.value)


def test_an_empty_batch() -> None:
    assert images.train(SIZE).batch({"jpg": []}, keys_of(0))["image"].shape == (0, SIZE, SIZE, 3)


# --- the objects --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [images.train(SIZE, flip=0.2, scale=(0.5, 1)), images.eval(SIZE, resize=40)],
    ids=repr,
)
def test_transforms_are_values(transform: Any) -> None:
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform and hash(copy) == hash(transform)
    assert eval(repr(transform), {"Train": images.Train, "Eval": images.Eval}) == transform
    columns, keys = {"jpg": PHOTOS}, keys_of(8)
    np.testing.assert_array_equal(
        copy.batch(columns, keys)["image"], transform.batch(columns, keys)["image"]
    )


@every_backend
def test_state_says_what_decodes_and_resizes(backend: str) -> None:
    state = images.train(SIZE, backend=backend).state
    assert state.startswith(decoders.decoder(backend).title)
    assert state.endswith(decoders.decoder("pillow").title) and state.count(" + ") <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: images.train(0),
        lambda: images.train(SIZE, threads=0),
        lambda: images.train(SIZE, max_pixels=0),
        lambda: images.train(SIZE, scale=(0, 1)),
        lambda: images.train(SIZE, scale=(0.5, 0.4)),
        lambda: images.train(SIZE, scale=(0.5, 1.1)),
        lambda: images.train(SIZE, ratio=(0, 1)),
        lambda: images.train(SIZE, ratio=(1, math.inf)),
        lambda: images.train(SIZE, flip=1.5),
        lambda: images.train(SIZE, backend="gd"),
        lambda: images.train(SIZE, backend="kernel", antialias=False),
        lambda: images.eval(SIZE, resize=SIZE - 1),
    ],
)
def test_options_that_make_no_sense(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


# --- the kernel ---------------------------------------------------------------------------


@pytest.mark.skipif(not compiled.is_available(), reason=compiled.why_not())
@pytest.mark.parametrize("make", [images.train, images.eval])
@pytest.mark.parametrize("size", [SIZE, 9, 200])
def test_the_compiled_kernel_differs_by_a_rounding(make: Any, size: int) -> None:
    """At the edges of a crop, too, and where pictures are decoded at a half."""
    pictures = PHOTOS + LARGE
    keys = keys_of(len(pictures))
    ours, theirs = (
        make(size, backend=backend).batch({"jpg": pictures}, keys)["image"].astype(int)
        for backend in ("kernel", "pillow")
    )
    assert np.abs(ours - theirs).max() <= 1


@pytest.mark.skipif(not compiled.is_available(), reason=compiled.why_not())
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_compiled_kernel_leaves_turned_pictures(orientation: int) -> None:
    data, keys = jpeg(100, 60, exif=exif(orientation)), keys_of(40)
    pictures = {"jpg": [data] * len(keys)}
    for make in (images.train, images.eval):
        ours = make(32, exif=True).batch(pictures, keys)["image"].astype(int)
        theirs = make(32, exif=True, backend="pillow").batch(pictures, keys)["image"]
        assert np.abs(ours - theirs).max() <= 1


def accepts(backend: str | None, data: bytes) -> bool:
    """Whether all crops of a picture are made, or else none of them."""
    made = set()
    for key in range(8):
        try:
            images.train(24, backend=backend).batch({"jpg": [data]}, keys_of(9)[key : key + 1])
        except BadImageError:
            made.add(False)
        else:
            made.add(True)
    assert len(made) == 1, "good or bad by the place of its crop"
    return made.pop()


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("what", ["cut 1", "cut 2", "cut 9", "cut 200", "stray", "jfif 2", "more"])
def test_the_same_pictures_are_refused_with_and_without_the_kernel(what: str) -> None:
    data = jpeg(80, 60)
    tables = data.index(b"\xff\xdb")
    kind, _, number = what.partition(" ")
    damaged = {
        "cut": lambda: data[: -int(number)],
        "stray": lambda: data[:tables] + bytes(3) + data[tables:],
        "jfif": lambda: data[:11] + b"\x02" + data[12:],
        "more": lambda: data + b"more",
    }[kind]()
    assert len({accepts(backend, damaged) for backend in (None, "simplejpeg", "pillow")}) == 1


@pytest.mark.skipif(not compiled.is_available(), reason=compiled.why_not())
def test_the_kernel_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is CMYK, no JPEG or turned is made as without it."""
    asked, crop_resize = [], compiled.crop_resize

    def noted(
        values: Any, boxes: Any, flips: Any, out: Any, threads: int, *more: Any, **k: Any
    ) -> Any:
        status = crop_resize(values, boxes, flips, out, threads, *more, **k)
        asked.append((threads, (status == 0).tolist()))
        return status

    monkeypatch.setattr(compiled, "crop_resize", noted)
    others = [ODD["CMYK jpg"](), encode(natural(50, 40), "PNG"), jpeg(60, 45, exif=exif(6))]
    pictures, keys = [PHOTOS[0], *others, PHOTOS[1]], keys_of(5)
    transform = images.train(SIZE, threads=3, exif=True)
    assert transform.state.startswith("kernel + ")
    out = transform.batch({"jpg": pictures}, keys)["image"]
    assert asked == [(3, [True, False, False, False, True])]
    plain = images.train(SIZE, exif=True, backend="pillow").batch({"jpg": pictures}, keys)["image"]
    np.testing.assert_array_equal(out[1:4], plain[1:4])
    with pytest.raises(
        BadImageError, match="60 x 45 pixels are more than max_pixels=2,699"
    ) as told:
        images.train(SIZE, max_pixels=2699).batch({"jpg": [PHOTOS[5], PHOTOS[0]]}, keys_of(2))
    assert told.value.slot == 1 and len(asked) == 1
    many = jpegs.three_scans(jpegs.jpeg(60, 40, "grey"), more=200)
    with pytest.raises(BadImageError, match="max_pixels") as told:
        images.train(SIZE).batch({"jpg": [PHOTOS[0], many]}, keys_of(2))
    assert told.value.slot == 1


def test_a_kernel_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "why_not", lambda: "no compiler")
    with pytest.raises(UsageError, match=r"^backend 'kernel' is not available: no compiler$"):
        images.train(SIZE, backend="kernel")
    compiled.warn_if_absent.cache_clear()
    with pytest.warns(UserWarning, match="decoded more slowly than they could be: no compiler"):
        assert not images.train(SIZE).state.startswith("kernel")
    compiled.warn_if_absent.cache_clear()


def test_eval_cuts_little_unless_told() -> None:
    assert images.eval(224)._short_side == 256 and images.eval(32)._short_side == 37
    with pytest.raises(UsageError, match="resize=31 leaves less than size=32"):
        images.eval(32, resize=31)
    for size in ("224", 224.5, (224, 160), True):
        with pytest.raises(UsageError, match="size must be a whole number"):
            images.eval(size)
    assert images.eval(SIZE)({"jpg": PHOTOS[0]})["image"].shape == (SIZE, SIZE, 3)  # nothing random
