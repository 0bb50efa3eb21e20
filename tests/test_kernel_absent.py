"""Where the kernel was not built, it says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardkit import images
from shardkit.errors import UsageError
from shardkit.images import kernel


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def compiled() -> None:
        raise ImportError("No module named 'shardkit.images._kernel'")

    monkeypatch.setattr(kernel, "_compiled", compiled)
    caches = (kernel.why_not, kernel.warn_if_absent)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("_absent")
def test_why_not_says_what_to_install() -> None:
    assert not kernel.is_available()
    assert "gcc python3-dev libjpeg-dev" in kernel.why_not()
    assert "No module named" in kernel.why_not()


@pytest.mark.usefixtures("_absent")
def test_calls_are_refused_with_the_same_words() -> None:
    with pytest.raises(UsageError, match="installed without its compiled kernel"):
        kernel.headers([])
    out = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(UsageError, match="installed without its compiled kernel"):
        kernel.crop_resize([b""], np.zeros((1, 4)), np.zeros(1, bool), out)


@pytest.mark.usefixtures("_absent")
def test_the_first_transform_warns_and_no_other() -> None:
    said = r"decoded more slowly than they could be: .* install a C compiler"
    with pytest.warns(UserWarning, match=said) as caught:
        images.train(8)
    images.train(8)
    images.eval(8)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


@pytest.mark.usefixtures("_absent")
def test_who_chose_another_decoder_is_not_warned() -> None:
    images.train(8, backend="pillow")
    images.train(8, antialias=False)


def test_each_status_has_its_words() -> None:
    words = {kernel.message(status) for status in kernel.Status}
    assert len(words) == len(kernel.Status)
    assert all("\n" not in word for word in words)
    with pytest.raises(ValueError, match="7 is not a valid Status"):
        kernel.message(7)
