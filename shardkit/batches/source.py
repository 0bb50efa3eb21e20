"""What can feed a loader: rows in, columns out."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from shardkit.errors import UsageError
from shardkit.order.epochs import EpochOrder, Order, Shuffle
from shardkit.order.permutation import Positions
from shardkit.shards.values import Column


@runtime_checkable
class Source(Protocol):
    """The seam between data and feeding: :class:`shardkit.Dataset`, a mix, or your own class.

    ``read`` is called from several threads at once, or from several processes that each have an
    unpickled or forked copy. The same rows give the same values wherever they are read.

    It may also have ``advise(rows)``: these rows will be read soon, return at once;
    ``where(row)``: the row in words, for messages; ``fingerprint``: a string that is equal for
    equal samples; ``order(shuffle, seed, epoch, **options)``: an order of its own; ``num_rows``,
    where that order has rows beyond ``len(self)``: rows are below it then; ``finish(batch)``: a
    collated batch, with what can only be told of a whole one; ``layout``: what only sources that
    say the same can be mixed with, in words.
    """

    def __len__(self) -> int: ...

    def read(self, rows: Positions, /) -> dict[str, Column]:
        """field -> (B, ...) values of (B,) int64 rows, each in [0, len(self)), or num_rows."""
        ...


def check_source(source: object) -> Source:
    """Raises UsageError for what cannot be read by rows."""
    if not isinstance(source, Source):
        raise UsageError(
            f"{type(source).__name__} cannot be fed from: it needs __len__ and read(rows); open a"
            " dataset with shardkit.open"
        )
    return source


def order_of(source: Source, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> EpochOrder:
    """The order of one epoch of a source; its own, where it has one."""
    own: Any = getattr(source, "order", None)
    if own is not None:
        order: EpochOrder = own(shuffle, seed, epoch, **options)
        return order
    return Order(len(source), shuffle, seed, epoch, **options)


def num_rows_of(source: Source) -> int:
    """Rows that can be read, of which an epoch may have fewer."""
    return int(getattr(source, "num_rows", len(source)))


def finish(source: Source, batch: dict[str, Any]) -> dict[str, Any]:
    """A collated batch, and what the source adds to it."""
    own: Any = getattr(source, "finish", None)
    return batch if own is None else dict(own(batch))


def fingerprint_of(source: Source) -> str:
    """What a resumed run compares: the source's own word, else its length."""
    return str(getattr(source, "fingerprint", "") or f"{len(source)} rows")


def where_is(source: Source, row: int) -> str:
    """A row in words, for messages."""
    own: Any = getattr(source, "where", None)
    return f"row {row}" if own is None else str(own(row))
