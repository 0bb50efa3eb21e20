"""What an edit can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xxhash

from shardkit.errors import UsageError
from shardkit.packing.listing import VAL
from shardkit.system.paths import first_few
from shardkit.versions.choose import ListedKeys
from shardkit.versions.labels import LabelTable

Filter = str | Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class EditOptions:
    """What is to change; see :func:`shardkit.edit`. Checked when made, raising UsageError."""

    keep_keys: ListedKeys | None
    drop_keys: ListedKeys | None
    keep_classes: tuple[str, ...]
    drop_classes: tuple[str, ...]
    filter: Filter | None
    drop_duplicates: bool
    labels: LabelTable | None
    val_fraction: float | None
    seed: int
    restore: int | None

    def __post_init__(self) -> None:
        nothing = {"seed": 0, "drop_duplicates": False, "keep_classes": (), "drop_classes": ()}
        asked = [name for name, value in vars(self).items() if value != nothing.get(name)]
        if not asked or asked == ["seed"]:
            raise UsageError("edit: say what is to change; `shardkit edit --help` lists it")
        if self.restore is not None and len(asked) > 1:
            raise UsageError("edit: restore goes with nothing else; edit the version it makes")
        share = self.val_fraction
        if share is not None and not (isinstance(share, int | float) and 0 < share < 1):
            raise UsageError(f"val_fraction is a share between 0 and 1, got {share!r}")
        if self.filter is not None and not (isinstance(self.filter, str) or callable(self.filter)):
            raise UsageError(f"filter is a function, or names one, got {self.filter!r}")

    def words(self) -> str:
        """What is to change, as the history has it."""
        said = [
            *([f"keep {self.keep_keys.words}"] if self.keep_keys is not None else []),
            *([f"drop {self.drop_keys.words}"] if self.drop_keys is not None else []),
            *([f"keep class {first_few(self.keep_classes)}"] if self.keep_classes else []),
            *([f"drop class {first_few(self.drop_classes)}"] if self.drop_classes else []),
            *([f"keep what {_name_of(self.filter)} takes"] if self.filter is not None else []),
            *(["drop duplicates"] if self.drop_duplicates else []),
            *([f"labels of {self.labels.words}"] if self.labels is not None else []),
        ]
        if self.val_fraction is not None:
            said.append(f"split anew, {self.val_fraction:g} to {VAL}, seed {self.seed}")
        if self.restore is not None:
            said.append(f"restore version {self.restore}")
        return f"edit: {'; '.join(said)}"

    def digest(self) -> str:
        """Of what the words do not say in full: keys and labels."""
        keys = [None if k is None else sorted(k.keys) for k in (self.keep_keys, self.drop_keys)]
        table = None if self.labels is None else sorted(self.labels.labels.items())
        said = repr((keys, table, self.keep_classes, self.drop_classes))
        return xxhash.xxh3_128_hexdigest(said.encode(errors="surrogateescape"))


def class_list(name: str, given: object) -> tuple[str, ...]:
    """Names of classes, of the argument of that name. Raises UsageError."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list | tuple | set | frozenset):
        raise UsageError(f"{name} must be a list of names of classes, got {given!r}")
    return tuple(map(str, listed))


def _name_of(function: Filter) -> str:
    return (
        function if isinstance(function, str) else getattr(function, "__qualname__", "a function")
    )
