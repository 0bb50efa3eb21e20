"""How fast the kernel makes crops of the pictures that a script reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_images
from doctor_evidence import PICTURES, rank

from shardkit.images import kernel
from shardkit.measure.doctor.run.kernel_trial import LEAST_PICTURES, kernel_trial, timed

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason="the kernel was not built")


def test_pictures_of_a_script_are_tried(tmp_path: Path) -> None:
    paths = sorted(make_images(tmp_path, per_class=12, classes=1).rglob("*.jpg"))
    files = replace(PICTURES, some=(*map(str, paths), str(tmp_path / "gone.jpg")))
    trial = kernel_trial(rank(files=files, picture_side=24))
    assert trial is not None and (trial.num_pictures, trial.side) == (12, 24)
    assert 1e-6 < trial.seconds < 0.1


def test_what_cannot_be_tried_is_not() -> None:
    assert kernel_trial(rank(files=None, picture_side=24)) is None
    assert kernel_trial(rank(files=PICTURES, picture_side=None)) is None
    assert timed([b"\xff\xd8 no picture"] * LEAST_PICTURES, 24) is None
    assert timed([b"\xff\xd8"] * (LEAST_PICTURES - 1), 24) is None
