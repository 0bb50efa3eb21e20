"""The options of ``pack`` that make tokens of text."""

from __future__ import annotations

import click

from shardkit.cli.pictures import Command, with_options

_OPTIONS = (
    click.option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="Store text as ids: of a tokenizer.json, a transformers folder, or a tiktoken encoding"
        " by name.",
    ),
    click.option(
        "--train-tokenizer",
        type=int,
        metavar="ENTRIES",
        help="The same, by a byte-level BPE of so many entries trained on SOURCE.",
    ),
    click.option(
        "--eos",
        metavar="TOKEN",
        default="auto",
        show_default=True,
        help="Token that ends each document; auto: the tokenizer's own; none.",
    ),
    click.option(
        "--bos",
        metavar="TOKEN",
        default="none",
        show_default=True,
        help="Token that begins each document.",
    ),
    click.option(
        "--invalid-utf8",
        type=click.Choice(["reject", "replace"]),
        default="reject",
        show_default=True,
        help="What to do with text that is not UTF-8: a bad input, or U+FFFD in its place.",
    ),
)


def token_options(command: Command) -> Command:
    """What makes tokens of text."""
    return with_options(_OPTIONS, command)
