"""NVIDIA DALI: any dataset as its external source, in shardkit order.

DALI itself is imported only by the pipeline that uses these::

    feed = shardkit.dali.source(shardkit.open("pictures-lmdb"), batch_size=64, shuffle="full")
    with Pipeline(batch_size=64, num_threads=4, device_id=0) as pipeline:
        jpegs, labels = fn.external_source(source=feed, num_outputs=2, batch_info=True)
        pipeline.set_outputs(fn.decoders.image(jpegs, device="mixed"), labels)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

import numpy as np

from shardkit.arguments import integer
from shardkit.arrays import Array, Integers
from shardkit.batches.batch_options import VALID, BatchOptions, OrderKeywords, spelled_out
from shardkit.batches.maker import BatchMaker
from shardkit.batches.source import FullSource, Source
from shardkit.errors import SampleError, UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.order.state import LoopState
from shardkit.samples.sample import KEY

Output = Array | list[Array]
Missing = Literal["fail", "empty"]


@spelled_out(OrderKeywords)
def source(
    dataset: Source,
    batch_size: int,
    *,
    fields: Sequence[str] | None = None,
    missing: Missing = "fail",
    **options: Unpack[OrderKeywords],
) -> ExternalSource:
    """A dataset as DALI's external source: the same batches as of :class:`shardkit.Loader`.

    For ``fn.external_source(source=..., num_outputs=len(fields), batch_info=True)``, with or
    without ``batch=True, parallel=True``. Its epochs end as DALI's do, in StopIteration; after
    ``pipeline.reset()`` the next one runs.

    Args:
        dataset, batch_size, options: as of :class:`shardkit.Loader`.
        fields: one an output. ``"jpg;png"`` is the first of these that a sample has; ``"__key__"``
            its key; ``"valid"``, with ``last="pad"``, whether it is no padding. Default: the
            pictures, of whatever kinds there are, then ``cls`` if there is one. What else the
            dataset has is read, too: open it with ``fields=`` to leave that out.
        missing: a sample without a field is an error (``"fail"``), or has an array of no bytes
            (``"empty"``); without its ``cls`` it is always an error.

    Raises:
        UsageError: options that make no sense, or an epoch without a single batch.
    """
    if missing not in ("fail", "empty"):
        raise UsageError(f"missing must be 'fail' or 'empty', got {missing!r}")
    chosen = BatchOptions.of("source", batch_size, options, OrderKeywords)
    maker = BatchMaker.of("source", dataset, chosen)
    maker.refuse_no_batch()
    return ExternalSource(maker, _outputs(maker.source, fields), missing)


@dataclass(frozen=True, eq=False)
class ExternalSource:
    """What DALI calls for each batch; made by :func:`source`, which says what the options mean.

    A call depends on nothing but the batch's number and epoch, so DALI may fetch ahead, call from
    worker processes (it pickles), and keep checkpoints of its own.

    Attributes:
        maker: which rows are in which batch.
        outputs: for each the names of its field; the first that a sample has is taken.
    """

    maker: BatchMaker
    outputs: tuple[tuple[str, ...], ...]
    missing: Missing = "fail"
    _state: LoopState = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_state", self.maker.first_state(makes_samples=False))

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return len(self.maker.plan(self.epoch))

    def __call__(self, info: Any) -> tuple[Output, ...]:
        """One batch, for DALI's ``BatchInfo``: an array (B, ...), or a list of B arrays, an output.

        Raises:
            StopIteration: the epoch has no such batch. DataError: a sample cannot be read.
        """
        number, epoch = _numbers(info)
        if number == 0:
            self.maker.ranks.refuse_others()
        start = 0 if epoch else self._state.position
        known = self.maker.batch_rows(self.epoch + epoch, start)
        if number >= known.num_batches:
            raise StopIteration
        self.maker.announce(known, number)
        rows = known.rows(number)
        columns: dict[str, Any] = {**self.maker.source.read(rows)}
        if self.maker.options.last == "pad":
            columns[VALID] = known.plan.positions(number)[1]
        if (KEY,) in self.outputs:
            columns[KEY] = self.maker.source.keys(rows)
        return tuple(self._output(columns, names, rows) for names in self.outputs)

    def _output(self, columns: dict[str, Any], names: tuple[str, ...], rows: Integers) -> Output:
        values = _first_of(columns, names)
        if isinstance(values, np.ndarray):
            return _array(values, names)
        lacking = next((i for i, value in enumerate(values) if value is None), None)
        if lacking is not None and (self.missing == "fail" or "cls" in names):
            where = self.maker.source.where(int(rows[lacking]))
            raise SampleError(
                f"{where} has no {' or '.join(names)}; name"
                " what it has, as in fields=['jpg;png'], select other samples, or, but for cls,"
                " pass missing='empty'"
            )
        if all(isinstance(value, int | float | np.number) for value in values):
            return _array(np.array(values), names)
        return [_array(value, names) for value in values]

    # --- where it is ----------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that a new pipeline runs first: 0, or that of a loaded state."""
        return self._state.epoch

    def state_dict(self, epoch: int, num_batches: int) -> dict[str, Any]:
        """Where a loop is that has received so many batches of an epoch: the state of a
        :class:`shardkit.Loader` there. DALI fetches ahead, so the loop alone can tell.

        Args:
            epoch: the first a pipeline runs is :attr:`epoch`, then one more after each reset.
        """
        start = self._state.position if epoch == self.epoch else 0
        plan = self.maker.plan(integer("epoch", epoch), start)
        if integer("num_batches", num_batches) > len(plan):
            raise UsageError(f"epoch {epoch} has {len(plan)} batches here, not {num_batches}")
        end = plan.end(num_batches - 1) if num_batches else start
        return {**self._state.state_dict(), "epoch": epoch, "position": end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, in pipelines that are built after this; of a Loader's state, too.

        Raises:
            UsageError: the state is of another dataset, seed or shuffle.
        """
        self._state.load_state_dict(state, self.maker.num_positions)


def _numbers(info: Any) -> tuple[int, int]:
    """(batch of the epoch, epoch) that DALI asks for."""
    if hasattr(info, "idx_in_batch") or not hasattr(info, "epoch_idx"):
        raise UsageError(
            f"DALI asked for {info!r}, not for a batch of an epoch: use"
            " fn.external_source(source=..., num_outputs=..., batch=True, batch_info=True)"
        )
    return int(info.iteration), int(info.epoch_idx)


def _outputs(source: FullSource, fields: Sequence[str] | None) -> tuple[tuple[str, ...], ...]:
    known = source.fields
    if fields is None:
        pictures = [name for name in known or () if name in IMAGE_FIELDS]
        if not pictures:
            raise UsageError("source: name its fields: this dataset has no pictures")
        return (tuple(pictures), *([("cls",)] if "cls" in (known or ()) else []))
    if isinstance(fields, str) or not fields or not all(isinstance(f, str) for f in fields):
        raise UsageError(f"fields must be a list of names, one an output, got {fields!r}")
    outputs = tuple(tuple(names.split(";")) for names in fields)
    unknown = {name for names in outputs for name in names} - {*(known or ()), KEY, VALID}
    if known is not None and unknown:
        raise UsageError(f"no field {min(unknown)!r} here, only {', '.join(known)}")
    for names in outputs:
        if len(names) > 1 and {KEY, VALID} & {*names}:
            raise UsageError(f"fields: {KEY} and {VALID} stand alone, got {';'.join(names)!r}")
    if (KEY,) in outputs and not source.has_keys:
        raise UsageError(f"{KEY}: a {type(source.given).__name__} has no keys(rows)")
    return outputs


def _first_of(columns: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """One column: of each sample the first of these fields that it has."""
    here = [columns[name] for name in names if name in columns]
    if not here:
        hint = "; it needs last='pad'" if VALID in names else ""
        raise UsageError(f"no field {names[0]!r} here, only {', '.join(columns)}{hint}")
    if len(here) == 1:
        return here[0]
    return [next((v for v in values if v is not None), None) for values in zip(*here, strict=True)]


def _array(value: Any, names: tuple[str, ...]) -> Array:
    """A value as DALI takes it; bytes are not copied. None is no bytes."""
    if value is None:
        return np.zeros(0, np.uint8)
    if isinstance(value, str):
        value = value.encode(errors="surrogateescape")
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise UsageError(
            f"field {';'.join(names)} holds {type(value).__name__}, and DALI takes bytes, text and"
            " real numbers; leave it out with fields=, or open with decode=False"
        )
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")
