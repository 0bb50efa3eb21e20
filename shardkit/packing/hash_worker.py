"""A process that hashes inputs, as :mod:`shardkit.packing.worker` is one that packs them."""

from __future__ import annotations

import json
from typing import TextIO

from shardkit.errors import ShardkitError
from shardkit.packing.answers import error_answer
from shardkit.packing.hash_job import hash_piece
from shardkit.packing.job import Setup
from shardkit.packing.whole_listing import ListedPiece
from shardkit.packing.worker import Answers, serve


class _Hasher:
    """Does one piece at a time."""

    def __init__(self, setup: Setup, answers: TextIO) -> None:
        self._setup = setup
        self._corpus = setup.open_corpus()
        self._answers = Answers(answers)

    def do(self, line: str) -> None:
        piece = ListedPiece(**json.loads(line))
        try:
            hash_piece(self._corpus, piece, self._setup, self._answers.report)
        except ShardkitError as error:
            self._answers.send(error_answer(error))
            return
        self._answers.flush()
        self._answers.send({"done": {"number": piece.shard}})

    def finish(self) -> None:
        """Nothing is under way between two pieces."""


if __name__ == "__main__":
    serve(_Hasher)
