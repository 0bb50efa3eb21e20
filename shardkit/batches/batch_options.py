"""What a user may say about batches: one list of options, for everything that makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from shardkit.arguments import integer, unknown_option
from shardkit.batches.transform import Transform
from shardkit.errors import UsageError
from shardkit.order.batches import Last, chosen_last
from shardkit.order.epochs import Shuffle, check_shuffle
from shardkit.samples.sample import KEY

OnError = Literal["fail", "skip"]

VALID = "valid"
"""The field of a padded batch that says which samples are no padding."""

F = TypeVar("F", bound=Callable[..., Any])


class OrderKeywords(TypedDict, total=False):
    """Which rows are in which batch, as keywords. :class:`BatchOptions` has the defaults."""

    shuffle: Shuffle | bool
    seed: int
    rank: int | None
    world_size: int | None
    last: Last
    drop_last: bool
    readahead: int
    block_rows: int | None
    window_blocks: int | None


class BatchKeywords(OrderKeywords, total=False):
    """Those, and what is made of the rows."""

    transform: Transform | None
    fields: Sequence[str] | None
    as_buffer: Sequence[str]
    with_keys: bool
    on_error: OnError
    max_skips: int
    mask_field: str | None


@dataclass(frozen=True)
class BatchOptions:
    """Which batches, and what is in them; :class:`shardkit.Loader` says what each option means.

    It checks itself, and holds numbers as Python's ints, ``shuffle=True`` as ``"full"``.

    Attributes:
        rank, world_size: as given; None: to be found, see :mod:`shardkit.order.ranks`.
        block_rows, window_blocks: None: those of the order.
        drop_last: what a user gave; :meth:`of` has made it a ``last``.

    Raises:
        UsageError: an option that makes no sense.
    """

    batch_size: int
    shuffle: Shuffle = None
    seed: int = 0
    transform: Transform | None = None
    rank: int | None = None
    world_size: int | None = None
    last: Last = "drop"
    drop_last: bool | None = None
    mask_field: str | None = VALID
    fields: Sequence[str] | None = None
    as_buffer: Sequence[str] = ()
    with_keys: bool = False
    on_error: OnError = "fail"
    max_skips: int = 100
    readahead: int = 4
    block_rows: int | None = None
    window_blocks: int | None = None

    @classmethod
    def of(
        cls,
        taker: str,
        batch_size: int,
        given: Mapping[str, Any],
        keywords: type[OrderKeywords] = BatchKeywords,
    ) -> BatchOptions:
        """From the keywords that a user gave to a ``taker``, which takes those of ``keywords``."""
        if unknown := given.keys() - keywords.__annotations__:
            raise unknown_option(taker, unknown)
        last = chosen_last(given.get("last"), given.get("drop_last"))
        return cls(batch_size, **{**given, "last": last, "drop_last": None})

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise UsageError(f"on_error must be 'fail' or 'skip', got {self.on_error!r}")
        if self.fields is not None:
            if isinstance(self.fields, str) or not self.fields:
                raise UsageError(f"fields must be a list of names, got {self.fields!r}")
            for name, is_added in (
                (KEY, self.with_keys),
                (self.mask_field, self.last == "pad"),
            ):
                if is_added and name is not None and name not in self.fields:
                    raise UsageError(f"fields: name {name!r}, too, which these options add")
            object.__setattr__(self, "fields", tuple(self.fields))
            object.__setattr__(self, "with_keys", KEY in self.fields)
        checked = {
            "batch_size": integer("batch_size", self.batch_size, 1),
            "shuffle": check_shuffle(self.shuffle),
            "seed": integer("seed", self.seed, None),
            "as_buffer": tuple(self.as_buffer),
            "max_skips": integer("max_skips", self.max_skips),
            "readahead": integer("readahead", self.readahead),
            **{name: integer(name, value, 1) for name, value in self.of_order.items()},
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def chosen(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The fields of a batch that were asked for, in that order; all, if none were."""
        if self.fields is None:
            return batch
        if missing := [name for name in self.fields if name not in batch]:
            raise UsageError(f"fields: no {missing[0]!r} in a batch, only {', '.join(batch)}")
        return {name: batch[name] for name in self.fields}

    def given(self, batch: dict[str, Any]) -> Any:
        """Return what the loop gets: a tuple, if fields were asked for."""
        return batch if self.fields is None else tuple(self.chosen(batch).values())

    @property
    def of_order(self) -> dict[str, int]:
        """What was said about blocks, see :class:`shardkit.Order`."""
        given = {"block_rows": self.block_rows, "window_blocks": self.window_blocks}
        return {name: value for name, value in given.items() if value is not None}


def spelled_out(keywords: type[OrderKeywords]) -> Callable[[F], F]:
    """A function that takes these as ``**options`` shows each by its name, with its default.

    Type checkers read that from ``Unpack``; this is for :func:`help` and notebooks.
    """

    def spell_out(function: F) -> F:
        signature = inspect.signature(function)
        kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        own = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(BatchOptions, name),
                annotation=annotation,
            )
            for name, annotation in get_type_hints(keywords).items()
        ]
        function.__signature__ = signature.replace(parameters=[*kept, *own])  # type: ignore[attr-defined]
        return function

    return spell_out
