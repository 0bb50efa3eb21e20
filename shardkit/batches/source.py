"""What can feed a loader: rows in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.order.epochs import EpochOrder, Order, Shuffle
from shardkit.shards.values import Column
from shardkit.storage.interface import Turn


@runtime_checkable
class Source(Protocol):
    """The seam between data and feeding: :class:`shardkit.Dataset`, a mix, or your own class.

    ``read`` is called from several threads at once, or from several processes that each have an
    unpickled or forked copy. The same rows give the same values wherever they are read.

    It may also have ``advise(rows)``: these rows will be read soon, return at once;
    ``where(row)``: the row in words, for messages; ``keys(rows)``: the key of each, a list of str;
    ``fields``: the names that ``read`` gives; ``fingerprint``: a string that is equal for equal
    samples; ``order(shuffle, seed, epoch, **options)``: an order of its own; ``num_rows``, where
    that order has rows beyond ``len(self)``: rows are below it then; ``finish(batch)``: a collated
    batch, with what can only be told of a whole one; ``read_joined(rows, names)``: as ``read``, but
    of these fields those of bytes may be a :class:`shardkit.shards.stored.Joined`; ``layout``: what
    only sources that say the same can be mixed with, in words; ``with_fields(names)``: the same, of
    which only these are read; ``warn_of_refetches(shuffle, **options)``: called once for each loop.
    """

    def __len__(self) -> int: ...

    def read(self, rows: Integers, /) -> dict[str, Column]:
        """field -> (B, ...) values of (B,) int64 rows, each in [0, len(self)), or num_rows."""
        ...


_TORCHS = {
    "Subset": "dataset.select(subset.indices), as of what random_split makes",
    "ConcatDataset": "shardkit.concat([...]) of the same datasets",
    "DataLoader": "its dataset, opened with shardkit.open",
}


def check_source(source: object) -> Source:
    """Raises UsageError for what cannot be read by rows."""
    bases = type(source).__mro__
    for name in [base.__name__ for base in bases if base.__module__.startswith("torch.utils.data")]:
        if name in _TORCHS:
            raise UsageError(f"a {name} of torch's cannot be fed from; give {_TORCHS[name]}")
    if not isinstance(source, Source):
        raise UsageError(
            f"{type(source).__name__} cannot be fed from: it needs __len__ and read(rows); open a"
            " dataset with shardkit.open"
        )
    return source


class FullSource:
    """A source that has all that a :class:`Source` may have: what the given one lacks is made up.

    This is the one place that knows what is optional. It is a source itself, and pickles if the
    given one does.

    Attributes:
        given: the source. read: its own. advise: its own, or None: then nobody need find the rows.
        has_keys: whether :meth:`keys` can be called. foresees: whether it pays to say far ahead
            what will be read.

    Raises:
        UsageError: it cannot be read by rows.
    """

    def __init__(self, given: object) -> None:
        self.given = check_source(given)
        self.read: Callable[[Integers], dict[str, Column]] = self.given.read
        self.advise: Callable[[Integers], object] | None = getattr(given, "advise", None)
        self._finish: Callable[[dict[str, Any]], Any] | None = getattr(given, "finish", None)
        self.foresees = bool(getattr(given, "foresees", False))
        self.has_keys = hasattr(given, "keys")
        self._read_joined: Callable[..., dict[str, Any]] | None
        self._read_joined = getattr(given, "read_joined", None)

    def is_cold(self) -> bool:
        """Whether anything has to be foreseen now; for who :attr:`foresees`."""
        return bool(cast(Any, self.given).is_cold())

    def foresee(self, rows: Integers, turn: Turn) -> None:
        """These rows will be read at that turn; for who :attr:`foresees`."""
        cast(Any, self.given).advise(rows, turn)

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """As :meth:`shardkit.storage.interface.Foresees.reached`."""
        return not self.foresees or cast(Any, self.given).reached(turn, is_resting=is_resting)

    def __reduce__(self) -> tuple[Any, ...]:
        return FullSource, (self.given,)

    def __len__(self) -> int:
        return len(self.given)

    @property
    def num_rows(self) -> int:
        """Rows that can be read, of which an epoch may have fewer."""
        return int(getattr(self.given, "num_rows", len(self.given)))

    @property
    def fields(self) -> list[str] | None:
        """Names of the columns, if it says them."""
        fields: list[str] | None = getattr(self.given, "fields", None)
        return fields

    @property
    def layout(self) -> str:
        """What only sources that say the same can be mixed with; mostly nothing."""
        return str(getattr(self.given, "layout", ""))

    @property
    def fingerprint(self) -> str:
        """What a resumed loop compares: the source's own word, else its length."""
        return str(getattr(self.given, "fingerprint", "") or f"{len(self)} rows")

    @property
    def versions(self) -> dict[str, int]:
        """Fingerprint -> number of a version, of a dataset that has several."""
        return dict(getattr(self.given, "versions", {}))

    def with_fields(self, names: list[str]) -> FullSource:
        """The same, of which only these fields are read, if it can do so."""
        choose: Callable[[list[str]], object] | None = getattr(self.given, "with_fields", None)
        return self if choose is None else FullSource(choose(names))

    def read_joined(self, rows: Integers, names: Sequence[str]) -> dict[str, Any]:
        """Columns of rows, of which these may be :class:`shardkit.shards.stored.Joined`."""
        if self._read_joined is None or not names:
            return self.read(rows)
        return self._read_joined(rows, names)

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> EpochOrder:
        """The order of one epoch; the source's own, where it has one."""
        own: Callable[..., EpochOrder] | None = getattr(self.given, "order", None)
        if own is not None:
            return own(shuffle, seed, epoch, **options)
        return Order(len(self), shuffle, seed, epoch, **options)

    def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A collated batch, and what the source adds to it."""
        return batch if self._finish is None else dict(self._finish(batch))

    def keys(self, rows: Sequence[int] | Integers) -> list[str]:
        """The key of each row. Raises UsageError if it has none."""
        own: Callable[[Any], list[str]] | None = getattr(self.given, "keys", None)
        if own is None:
            raise UsageError(f"a {type(self.given).__name__} has no keys(rows)")
        return own(rows)

    def where(self, row: int) -> str:
        """A row in words, for messages."""
        own: Callable[[int], object] | None = getattr(self.given, "where", None)
        return f"row {row}" if own is None else str(own(row))
