"""The end of a pack and of a merge: from shards that are all there to a published dataset."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardkit.index.journal import Receipt
from shardkit.packing.choose_tokenizer import ChosenTokenizer
from shardkit.packing.destination import Destination
from shardkit.packing.finish import Origin, assemble, notes_on, own_origin
from shardkit.packing.listed_input import ListedInput
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult, result_of
from shardkit.packing.up_to_date import made_of, remember_inputs


@dataclass(frozen=True)
class Conclusion:
    """What is known of a dataset before its shards are.

    Attributes:
        recipe: what decides the result, as plain values.
        origin: what the dataset says of where its samples came from, if not what the input says.
    """

    destination: Destination
    options: PackOptions
    recipe: dict[str, Any]
    chosen: ChosenTokenizer | None
    origin: Origin | None = None

    def publish(
        self,
        receipts: list[Receipt],
        listed: ListedInput,
        num_rejects: int,
        num_resumed: int,
        started: float,
    ) -> PackResult:
        """Write the index, and have the dataset take its place.

        Args:
            receipts: as of :func:`shardkit.packing.finish.assemble`, which says what is raised.
            started: when the clock of the result began.
        """
        destination = self.destination
        origin = self.origin or own_origin(listed.spec, made_of(self.recipe, listed.contents))
        info = assemble(destination, listed.classes, receipts, self.options, origin, self.chosen)
        result = result_of(
            destination.name,
            destination.stage,
            listed,
            info,
            num_rejects,
            num_resumed,
            time.perf_counter() - started,
        )
        result.notes.extend(filter(None, [destination.note]))
        result.notes.extend(listed.notes)
        result.notes.extend(self.chosen.notes if self.chosen else [])
        result.notes.extend(notes_on(self.options, receipts))
        destination.finish(info, self.recipe, {**asdict(result), "dest": ""})
        if destination.name == destination.dest:
            remember_inputs(destination.dest, self.recipe, listed.seen)
        return replace(result, seconds=time.perf_counter() - started)
