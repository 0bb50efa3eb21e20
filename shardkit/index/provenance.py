"""Where the samples of a dataset came from: the entry ``corpus`` of its manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOKENIZER_FILES = frozenset({"tokenizer.json", "tokenizer.tiktoken"})
"""What the file of a dataset's tokenizer may be called."""

_OWN = ("packed", "limit", "tokens", "images")


@dataclass(frozen=True)
class Provenance:
    """What a dataset was packed from, and how.

    Attributes:
        spec: what the corpus says of itself, see :meth:`shardkit.inputs.corpus.Corpus.spec`;
            without names of classes, which the manifest has elsewhere.
        packed: 16 hexadecimal digits, a checksum of the options and of names and sizes of all
            inputs, or of a merge of datasets; None where it was made of neither.
        limit: so many entries of each split were packed at most.
        tokens: the tokenizer, as :class:`shardkit.tokens.spec.TokenizerSpec` has it in JSON. Only
            the name of its file is checked.
        images: what was done to pictures, in order, each as
            :class:`shardkit.images.choice.ImageChoice` has it in JSON.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    packed: str | None = None
    limit: int | None = None
    tokens: dict[str, Any] | None = None
    images: tuple[dict[str, Any], ...] = ()

    @property
    def kind(self) -> str | None:
        """What kind of input it was, if that is known."""
        return self.spec.get("kind")

    @property
    def text_field(self) -> str | None:
        """The field or column that was packed as text."""
        return self.spec.get("text_field")

    @property
    def fields(self) -> list[str] | None:
        """The columns, or keys of lines, that were chosen."""
        return self.spec.get("fields")

    @property
    def has_labels(self) -> bool:
        """Whether class numbers came from a file, and not from folders."""
        return "labels" in self.spec

    @property
    def kept_texts(self) -> dict[str, str]:
        """Of files that are kept here as text, their paths and that; what is none is left out."""
        files = self.spec.get("annotations")
        entries = files.items() if isinstance(files, dict) else ()
        texts = {path: held.get("text") for path, held in entries if isinstance(held, dict)}
        return {path: text for path, text in texts.items() if isinstance(text, str)}

    @property
    def has_restarts(self) -> bool:
        """Whether JPEGs may hold restart markers that ``unpack`` is to remove."""
        return any(choice.get("restarts") is True for choice in self.images)

    @property
    def passed(self) -> dict[str, int]:
        """Of tars made by others: members that are no part of a sample, by their endings."""
        return dict(self.spec.get("passed", {}))

    @property
    def tokenizer_file(self) -> str | None:
        """Name of the tokenizer's file, where one travels with the dataset."""
        return None if self.tokens is None else self.tokens["file"]

    @property
    def tokenizer_bytes(self) -> int:
        """The size of that file."""
        return 0 if self.tokens is None else int(self.tokens.get("bytes", 0))

    def to_json(self) -> dict[str, Any]:
        """:meth:`from_json` is its inverse. What is not there has no entry."""
        own = {name: getattr(self, name) for name in _OWN}
        own["images"] = list(self.images) or None
        return self.spec | {name: value for name, value in own.items() if value is not None}

    @classmethod
    def from_json(cls, raw: Any) -> Provenance:
        """Check and build; ``raw`` is not trusted.

        Raises:
            ValueError, TypeError, KeyError: something in it is out of place.
        """
        if not isinstance(raw, dict):
            raise TypeError("corpus")
        images = raw.get("images", [])
        good = {
            "kind": isinstance(raw.get("kind"), str | None),
            "text_field": isinstance(raw.get("text_field"), str | None),
            "fields": "fields" not in raw or _are_texts(raw["fields"]),
            "passed": _are_counts(raw.get("passed", {})),
            "packed": isinstance(raw.get("packed"), str | None),
            "limit": isinstance(raw.get("limit"), int | None),
            "images": isinstance(images, list) and all(isinstance(i, dict) for i in images),
            "tokens": "tokens" not in raw or _names_a_tokenizer(raw["tokens"]),
        }
        for name, is_good in good.items():
            if not is_good:
                raise ValueError(f"bad corpus: {name}")
        return cls(
            {name: value for name, value in raw.items() if name not in _OWN},
            raw.get("packed"),
            raw.get("limit"),
            raw.get("tokens"),
            tuple(images),
        )


def _are_counts(raw: Any) -> bool:
    return isinstance(raw, dict) and all(type(number) is int for number in raw.values())


def _are_texts(raw: Any) -> bool:
    return isinstance(raw, list) and all(isinstance(name, str) for name in raw)


def _names_a_tokenizer(tokens: Any) -> bool:
    """What opening relies on; :class:`shardkit.tokens.spec.TokenizerSpec` checks the rest."""
    if not isinstance(tokens, dict):
        return False
    name = tokens["file"]
    return name is None or (isinstance(name, str) and name in TOKENIZER_FILES)
