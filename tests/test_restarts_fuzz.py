"""The rewriter of JPEGs fed with damaged files, under the sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kernel_fuzz import fuzzed

DRIVER = Path(__file__).parent / "restarts_fuzz.c"


@pytest.mark.thorough
def test_mutated_pictures_do_no_harm(tmp_path: Path) -> None:
    found = fuzzed(DRIVER, tmp_path)
    assert found["undone"] > 1000, "too little of it was rewritten"
    assert min(found.values()) > 0
