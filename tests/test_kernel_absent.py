"""Where the kernel was not built, it says so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from shardkit.errors import UsageError
from shardkit.images import kernel


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def compiled() -> None:
        raise ImportError("No module named 'shardkit.images._kernel'")

    monkeypatch.setattr(kernel, "_compiled", compiled)
    kernel.why_not.cache_clear()
    yield
    kernel.why_not.cache_clear()


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


def test_each_status_has_its_words() -> None:
    words = {kernel.message(status) for status in kernel.Status}
    assert len(words) == len(kernel.Status)
    assert all("\n" not in word for word in words)
    with pytest.raises(ValueError, match="7 is not a valid Status"):
        kernel.message(7)
