"""How fast the kernel makes crops of the pictures that a script reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_images, write
from doctor_evidence import PICTURES, rank

from shardkit.images import kernel
from shardkit.measure.doctor.run.kernel_trial import LEAST_PICTURES, crop_seconds

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason="the kernel was not built")


def test_pictures_of_a_script_are_tried(tmp_path: Path) -> None:
    paths = [str(path) for path in make_images(tmp_path, per_class=12, classes=1).rglob("*.jpg")]
    files = replace(PICTURES, some=(*paths, str(tmp_path / "gone.jpg")))
    seconds = crop_seconds(rank(files=files, picture_side=24))
    assert seconds is not None and 1e-6 < seconds < 0.1
    few = replace(files, some=tuple(paths[: LEAST_PICTURES - 1]))
    bad = str(write(tmp_path / "bad.jpg", b"\xff\xd8 no picture"))
    for other in (few, replace(files, some=(*paths, bad)), None):
        assert crop_seconds(rank(files=other, picture_side=24)) is None
    assert crop_seconds(rank(files=files, picture_side=None)) is None
