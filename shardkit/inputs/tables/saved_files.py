"""What ``save_to_disk`` of Hugging Face datasets leaves beside its tables."""

from __future__ import annotations

from pathlib import Path

INFO_NAME = "dataset_info.json"
STATE_NAME = "state.json"
DICT_NAME = "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    """Whether ``datasets`` saved a dataset, or several splits, here."""
    is_one = all((folder / name).is_file() for name in (STATE_NAME, INFO_NAME))
    return is_one or (folder / DICT_NAME).is_file()
