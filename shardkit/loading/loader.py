"""The loader: batches of named tensors from a dataset, in exact order, from any point."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Unpack

from shardkit.arguments import integer
from shardkit.batches.batch_options import BatchKeywords, BatchOptions, spelled_out
from shardkit.batches.collate import Batch
from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made
from shardkit.batches.source import Source
from shardkit.batches.transform import refuse_in_threads
from shardkit.errors import UsageError
from shardkit.loading.accelerated import Accelerated
from shardkit.loading.auto import choose
from shardkit.loading.feed import Feed, FeedOptions
from shardkit.loading.settings import Settings
from shardkit.loading.skips import SkipCount, Skips
from shardkit.loading.stats import LoaderStats
from shardkit.loading.trainers import (
    LoopPlace,
    NumberedEpochs,
    Said,
    place_of,
    refuse_index,
    refuse_sampler,
)
from shardkit.loading.workers import WorkerType


@dataclass(eq=False)
class _Iteration:
    """One that was begun. ``before``: where the last batch was asked for until then."""

    before: LoopPlace
    is_asked: bool = False


class Loader(Accelerated):
    """Iterate over it once an epoch; each iteration is the next epoch.

    The sequence of *global* batches (all ranks' together) depends on the dataset, ``shuffle``,
    ``seed``, the epoch and ``batch_size * world_size``, and on nothing else: not on the container
    format, the number or kind of workers, the world size, or where a run was resumed. A copy, also
    an unpickled one, goes on from where the loader was.

    Args:
        dataset: :class:`shardkit.Dataset`, a mix, or any :class:`shardkit.Source`.
        batch_size: samples a batch, on each rank.
        shuffle: ``"full"`` (or True), ``"block"`` (neighbours stay near: for slow disks), or None.
        seed: of the shuffle and of the transform's randomness, by default 0.
        transform: ``sample -> sample``, both a dict of fields. One with a parameter named ``rng``
            gets a numpy Generator keyed by (seed, epoch, position); one with a method
            ``batch(columns, keys)`` gets a whole batch. See :mod:`shardkit.batches.transform`.
        workers: threads or processes that make batches; 0 makes them in the loop's own thread.
            ``"auto"``: what ``shardkit tune`` found for this work on this machine, else a rule,
            see :mod:`shardkit.loading.auto`; ``loader.settings`` says which.
        worker_type: ``"thread"``, the default: no copies between processes; right where the work
            lets go of the GIL (reading, decoding). ``"process"``: where it is Python code.
        prefetch: batches each worker makes ahead, by default 2.
        pin_memory: yield batches in pinned memory, where there is CUDA. For copies of your own:
            ``device`` needs no such thing.
        device: yield batches on this device, through a :class:`CudaPrefetcher`. With ``workers=0``
            batches are still made in the loop's own thread; only the copies run aside.
        device_transform: ``batch -> batch``, run on the device. With workers it runs in the
            prefetcher's thread, where it may not draw from the global random generators.
        rank, world_size: by default torch.distributed's, else the environment's RANK and
            WORLD_SIZE, else 0 of 1; an iteration raises UsageError if by then they are others.
        last: ``"drop"`` leaves out the last global batch if it is not full; ``"pad"`` fills it from
            the front of the epoch, and ``batch["valid"]`` ((B,) bool) is False for what was added;
            ``"keep"``, for evaluation, gives the ranks equal parts of it, so a batch may be shorter
            by one sample on some ranks, and a rank for which nothing is left has one batch less.
        drop_last: torch's word: True is ``last="drop"``, False ``last="keep"``.
        mask_field: another name for ``"valid"``; None leaves that field out, as for
            ``model(**batch)`` where accelerate's ``gather_for_metrics`` cuts off the padding.
        fields: yield tuples of these fields, in this order; without a transform only these are
            read. By default a batch is a dict of all. ``"valid"`` of ``last="pad"`` and
            ``"__key__"`` are fields, too, and have to be named.
        as_buffer: fields of bytes that come as one (N,) uint8 tensor, with ``{field}.offsets``.
        with_keys: add ``batch["__key__"]``, a list of str.
        on_error: ``"skip"`` replaces a row that cannot be read or transformed by the first good
            row at the following positions, alike on every rank and each time. What is random in its
            transform is drawn anew for each row that is tried.
        max_skips: rows an epoch may replace, by default 100, on all ranks together; the state has
            their number. One rank alone raises at once, several that keep step at the same batch,
            of the next 16: see :class:`shardkit.loading.skips.SkipCount`.
        readahead: batches announced to the kernel before they are read, by default 4; 0 for none.
        block_rows, window_blocks: of block order, see :class:`shardkit.Order`.

    Raises:
        UsageError: options that make no sense, or an epoch without a single batch.
    """

    @spelled_out(BatchKeywords)
    def __init__(
        self,
        dataset: Source,
        batch_size: int,
        *,
        workers: int | Literal["auto"] = 2,
        worker_type: WorkerType | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        device: Any = None,
        device_transform: Callable[[Batch], Batch] | None = None,
        **options: Unpack[BatchKeywords],
    ) -> None:
        chosen = BatchOptions.of("Loader", batch_size, options)
        # A transform on the device is given all, and may make what is asked for.
        early = chosen if device_transform is None else replace(chosen, fields=None)
        maker = BatchMaker.of("Loader", dataset, early)
        settings = choose(maker, workers, worker_type, prefetch)
        if settings.workers and settings.worker_type == "thread":
            refuse_in_threads(maker.transform)
        if device is None and device_transform is not None:
            raise UsageError("device_transform runs on a device: give device=, too")
        self._set_up(FeedOptions(maker, settings, pin_memory, device, device_transform, chosen))
        maker.refuse_no_batch()

    def _set_up(self, given: FeedOptions) -> None:
        """What is this loader's alone: where it is, and what runs."""
        self._given = given
        self._feed = Feed(given)
        self._skips = Skips(given.maker) if given.maker.options.on_error == "skip" else None
        self._state = given.maker.first_state()
        self._work = json.dumps(self._state.state_dict())
        self._is_started = False
        self._newest: _Iteration | None = None
        self._stats = LoaderStats()
        self._hear(Said())

    def __getstate__(self) -> tuple[FeedOptions, dict[str, Any]]:
        return self._given, self.state_dict()

    def __setstate__(self, state: tuple[FeedOptions, dict[str, Any]]) -> None:
        """A copy goes on from where this one is, as from its state."""
        given, position = state
        self._set_up(replace(given, maker=replace(given.maker)))
        self.load_state_dict(position)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise UsageError(f"{name} of a Loader that is made cannot be set: make another")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        maker = self.maker
        where = f"rank {maker.ranks.rank} of {maker.ranks.world_size}"
        batches = f"{len(self)} batches of {self.batch_size} of {self.dataset!r}"
        return f"<Loader: {batches}, {where}, {self.settings} ({self.settings.why})>"

    @property
    def maker(self) -> BatchMaker:
        """Which batches, of what."""
        return self._given.maker

    @property
    def settings(self) -> Settings:
        """Where they are made, and who said so."""
        return self._given.settings

    @property
    def stats(self) -> LoaderStats:
        """Since the loader was made."""
        return self._stats

    @property
    def dataset(self) -> Source:
        """What it was given."""
        return self.maker.source.given

    @property
    def batch_size(self) -> int:
        """Samples a batch, on each rank."""
        return self.maker.options.batch_size

    @property
    def num_workers(self) -> int:
        """As torch's DataLoader has it: with 0, whoever asks for a batch makes it."""
        return self.settings.workers

    @property
    def batch_sampler(self) -> NumberedEpochs:
        """Where Lightning says which of its epochs comes, see :mod:`shardkit.loading.trainers`."""
        return NumberedEpochs(self._number_epoch)

    @property
    def sampler(self) -> NoReturn:
        """None: SamplerMissingError, an AttributeError, says how to do without."""
        refuse_sampler()

    def __getitem__(self, index: object) -> NoReturn:
        """UsageError: torch's DataLoader around a Loader asks for samples."""
        refuse_index()

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank unless ``last="keep"`` has none for
        this one; fewer are left after a resume."""
        return len(self.maker.plan(self.epoch))

    # --- where it is ----------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The running epoch, or, if none runs, the next one; after a ``break``, the one
        that was broken off, until the next begins. After a resume go on with ``for epoch in
        range(loader.epoch, num_epochs)``."""
        return self._state.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch: from its beginning, or, after a state of this epoch
        was loaded, from there. Warns if that forgets a loaded position."""
        self._state.set_epoch(epoch)
        self._is_started = False
        self._newest = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: after the last batch it *received*. Small, JSON."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there; with any world size, workers, format.

        Raises:
            UsageError: the state is of another dataset, seed, shuffle, ``last`` or transform, as it
                says of itself (:func:`shardkit.batches.words.in_words`). Without its ``made_by``
                or ``last`` it goes on with another.
        """
        self._state.load_state_dict(state, self.maker.num_positions)
        self._is_started = False
        self._newest = None
        self._hear(Said(is_resumed=True))

    def _here(self) -> LoopPlace:
        return LoopPlace(self._state.epoch, self._state.position, self._state.skipped)

    def _last_asked(self) -> LoopPlace:
        """Where the last batch was asked for, whatever iterations were begun since."""
        newest = self._newest
        return self._here() if newest is None or newest.is_asked else newest.before

    def _hear(self, said: Said) -> None:
        self._said, self._received_before = said, self.stats.batches

    def _number_epoch(self, number: int) -> None:
        """A trainer begins its epoch of this number, maybe with the iteration that waits."""
        received = self.stats.batches - self._received_before
        batch = self.maker.plan(0).global_batch_size
        number = integer("epoch", number)
        place, said = place_of(number, self._said, self._last_asked(), received, batch)
        self._hear(said)
        self._state.move(place.epoch, place.position, place.skipped)
        self._is_started = False
        if self._newest is not None and self._newest.is_asked:
            self._newest = None

    # --- iterating ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self.maker.ranks.refuse_others()
        before = self._last_asked()
        # Begins here, not at the first batch: a state may be asked for in between.
        if self._is_started:
            self._state.move(self.epoch + 1, 0)
        self._is_started = True
        # The newest iteration says where the loop is; set_epoch and load_state_dict end its say.
        self._newest = iteration = _Iteration(before)
        return self._batches(iteration, self._here())

    def _batches(self, iteration: _Iteration, begun: LoopPlace) -> Generator[Any, None, None]:
        iteration.is_asked = True
        if self._newest is iteration:
            # A trainer may have said its epoch's number meanwhile.
            begun, self._is_started = self._here(), True
        epoch, start = begun.epoch, begun.position
        count = None if self._skips is None else self._skips.begin(epoch, start, begun.skipped)
        plan = self.maker.plan(epoch, start)
        with (
            self.maker.ranks.whole_iteration(self._work),
            self._registered(plan) as handed_over,
            closing(self._feed.batches(epoch, start)) as made,
        ):
            while (one := self._next(made, count)) is not None:
                if self._newest is iteration:
                    self._state.move(epoch, one.end, 0 if count is None else count.total)
                handed_over()
                yield self._given.options.given(one.batch)
                del one  # or it would live until the next is there
        if count is not None:
            count.end()
        if self._newest is iteration:
            self._state.move(epoch + 1, 0)
            self._is_started = False

    def _next(self, made: Iterator[Made], count: SkipCount | None) -> Made | None:
        started = time.perf_counter()
        one = next(made, None)
        if one is None:
            return None
        if count is not None:
            count.add(one)
        self.stats.add(one, time.perf_counter() - started)
        return one
