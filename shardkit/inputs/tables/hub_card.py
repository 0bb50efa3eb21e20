"""What the card (``README.md``) of a dataset of the Hugging Face hub says of the files of a folder.

The folder is that of the card, or ``data/`` in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardkit.inputs.folders import Root, pass_over
from shardkit.inputs.tables.features import CARD_NAME, read_card
from shardkit.inputs.tables.hub_configs import (
    Config,
    absent_files,
    config_of,
    configs_of_card,
    notes_on_config,
    splits_of_config,
)
from shardkit.inputs.whole_sets import refuse_absent

Told = dict[str, str]
"""File -> its split, or ``""`` if the card does not say, of the files that the card names."""


class HubCard:
    """The card of a folder, read when it is first asked.

    Attributes:
        notes: what there is to say of the files that it was last asked for, a line each.
        has_splits: whether it gave those it names to splits.
    """

    def __init__(self, source: Path, endings: frozenset[str]) -> None:
        self._source = source
        self._endings = endings
        self._configs: list[Config] | None = None
        self.notes: list[str] = []
        self.has_splits = False

    def told(self, bases: Sequence[str]) -> Told | None:
        """What it says of files of the source; None if it names none.

        Raises:
            CorpusError: they are of several configurations, one is of two splits, or one that is
                named is not there.
        """
        self.notes, self.has_splits = [], False
        folder, within = root_of_hub(self._source)
        if self._configs is None:
            self._configs = configs_of_card(read_card(folder / CARD_NAME, "configs"))
        paths = [within + base for base in bases]
        config = config_of(paths, self._configs, self._source)
        if config is None:
            if self._configs:
                self.notes.append("README.md names no file here, so that it tells no splits")
            return None
        told = splits_of_config(config, paths, self._source)
        self.has_splits = any(told.values())
        absent = absent_files(config, paths, self._endings)
        refuse_absent([path for path in absent if path.startswith(within)], self._source)
        left_out = [path for path in paths if path not in told]
        self.notes += notes_on_config(config, told, left_out)
        return {path.removeprefix(within): split for path, split in told.items()}


def root_of_hub(folder: Path) -> tuple[Path, str]:
    """The folder of a dataset's card, and what leads from there to ``folder``, which may be its
    ``data/``."""
    whole = folder.absolute()
    return (whole.parent, "data/") if whole.name == "data" else (folder, "")


def keep_told(found: dict[str, Root], told: Told | None, ignored: dict[str, int]) -> Told:
    """Drop files that the card does not name, and count them in ``ignored``. Without a card, all
    are told of."""
    if told is None:
        return dict.fromkeys(found, "")
    for base in [base for base in found if base not in told]:
        pass_over(base, ignored)
        del found[base]
    return told


def agree(found: Mapping[str, Root], told: Told) -> bool:
    """Whether the card says no other splits than the folders at the top."""
    return all(root.base and told[base] in ("", root.split) for base, root in found.items())
