"""What `shardkit info --system` advises."""

from __future__ import annotations

import pytest

from shardkit.measure.image_support import advice, is_simd, system

SIMD, PLAIN = ("pillow-simd", "12.1.1.post0"), ("pillow", "13.0.0")
JPEGS = ["simplejpeg 1.9.0"]


@pytest.mark.parametrize(
    ("backends", "found", "why_not", "processor", "starts"),
    [
        (JPEGS, SIMD, "", "x86_64", []),
        (JPEGS, PLAIN, "", "aarch64", []),
        (JPEGS, PLAIN, "", "x86_64", ["pip uninstall pillow, then CC='cc -mavx2' pip install"]),
        (JPEGS, None, "", "x86_64", ["pip install 'shardkit[simd]'"]),
        (JPEGS, None, "", "aarch64", ["pip install 'shardkit[pillow]'"]),
        (["pillow 13.0.0"], SIMD, "", "AMD64", ["pip install simplejpeg"]),
        (JPEGS, SIMD, "no compiler", "x86_64", ["the compiled kernel, which is the fastest: no c"]),
    ],
)
def test_advice(
    backends: list[str],
    found: tuple[str, str] | None,
    why_not: str,
    processor: str,
    starts: list[str],
) -> None:
    lines = advice(backends, found, why_not, processor)
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_the_simd_build() -> None:
    assert is_simd(SIMD) and not is_simd(PLAIN)


def test_this_machine() -> None:
    found = system()
    assert found.kernel["is_available"] == (found.kernel["why_not"] == "")
    assert found.pillow is not None and found.jpeg_backends
