"""What kinds of containers share whose columns ``--fields`` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from shardkit.inputs.base import Input


class ChosenFields(Input):
    """An input of one file or a folder, whose columns are looked at when it is opened."""

    is_one_file = True
    options = frozenset({"fields"})

    def __init__(
        self, source: Path, fields: Sequence[str] | None = None, tokenized: bool = False
    ) -> None:
        """``fields``: columns to pack, None for all. ``tokenized``: if none is chosen, text."""
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._fields = None if fields is None else [*fields]
        self._find()
        self._look()
        if tokenized and fields is None and (texts := self._texts()):
            self._fields = texts
            self._look()

    def _find(self) -> None:
        """Find the files, where that is done once."""

    def _look(self) -> None:
        """Decide what becomes of the columns, of those in ``_fields`` if some are chosen."""
        raise NotImplementedError

    def _texts(self) -> list[str]:
        """The columns that are ``txt``."""
        raise NotImplementedError

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.source, made.classes, made.ignored, made.notes = source, None, {}, []
        made._fields = spec.get("fields")
        made._take(spec)
        return made

    def _take(self, spec: dict[str, Any]) -> None:
        """What reading needs of :meth:`spec`."""
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        spec = {"kind": self.kind, **self._own_spec()}
        return spec if self._fields is None else {**spec, "fields": self._fields}

    def _own_spec(self) -> dict[str, Any]:
        """All of it but the kind and the fields."""
        raise NotImplementedError

    def _path(self, base: str) -> Path:
        return self.source / base if base else self.source
