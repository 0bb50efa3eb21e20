"""Texts on which tokenizers disagree, or lose something."""

from __future__ import annotations

from collections.abc import Iterable

TEXTS = (
    "",
    " ",
    "\n",
    "\0",
    "a",
    "Hello, world!",
    "no final newline",
    "final newline\n",
    " a leading space",
    "a trailing space ",
    "\ufeffa byte order mark",
    "CRLF\r\nline\r\n\r\nCR\ralone\n\rreversed",
    "NUL\0inside\0\0",
    "controls \x01\x07\x08\x0b\x0c\x1b[31m\x1c\x1f\x7f\x80\x85\x9f",
    "two  three   four    five     six\t\ttabs \t \t mixed",
    "lines\n\n\n\n\n  indented\n\n    more\n \n  \n\t\n",
    "space before newline \n  \n   \nx  \n",
    "def f(x):\n    if x:\n\treturn x[1:]  # why?\n\n\n",
    "don't DON'T I'm I'M we'll WE'LL they've THEY'VE you're YOU'RE he'd HE'D it's IT'S",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D ' s '' '''' o'clock '90s d'accord ’s ’t it\u2019s",
    "long s: 'ſ 'lſ Kelvin: \u212a dotted: İı 'İ sharp: ßẞ ﬆ",
    "0 1 12 123 1234 12345 1234567890 3.14 1,000,000 -1 +1 1e10 0x1F 1st 2nd a1b22c333",
    "½²①Ⅷ ٣٤٥ ४५ １２ \U0001d7d8\U0001d7d9 〇",
    "!? ... ,,,, ;;; --- ___ === *** ### @@@ $$$ %%% &&& (((()))) [[]] {{}} <<>> \\\\ // || ~~ ``",
    "#!/bin/sh\n/usr/lib/x.so.1 a_b __init__ CamelCase camelCase UPPER lOWER ÉCOLE écolE",
    "Straße naïve café cafe\u0301 Ångström A\u030angstro\u0308m n\u0303 ắ a\u0306\u0301",
    "\u0301 a combining mark first, and e\u0301\u0302\u0303\u0304\u0305 many",
    "йи\u0306 Привет, мир! Ελληνικά Արմ",
    "你好\uff0c世界\u3002日本語のテキスト 한국어 \u1112\u1161\u11ab \U00020000\U0002a6d6",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0650\u0633\u0652\u0645\u0650 "
    "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd नमस\u094dत\u0947 สว\u0e31สด\u0e35 "
    "ព\u17b6ស\u17b6",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd "
    "\U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\u00a0no-break\u00a0 \u2003em\u2003\u2009thin\u200a\u202f \u3000wide\u3000 \u1680 "
    "\u180e \u200b\u2060 \u2028\u2029",
    " \u00a0 \u2003 \u3000\n\u00a0\n x\u00a0y\u3000z \u0085 \u2028x",
    "\ufffd \ufffe \uffff \ufdd0 \ufdef \U0001fffe \U0001ffff \U0010ffff \ue000 "
    "\U000f0000 \U00010ffe",
    "\u202eright to left\u202c \u2066isolate\u2069 soft\u00adhyphen \u034f \u115f \u3164",
    "\u24d0 ⅰ ᾈ ǅ Ꙋ Ᵹ \ua7cb \ua7dc \u1c89 \U00010400 \U00010d40 \U00010d50 \U00011f50",
    "<|endoftext|><|im_start|>user<s></s>[CLS][SEP][UNK][PAD][MASK]<unk><pad><0x0A><bos><eos>",
    "\u2581metaspace \u2581\u2581 Ġ Ċ ## ##ing </w> @@ Ã\u00a9",
    "https://example.org/a?b=c&d=%20#e  user@example.org  $x^2+\\frac{1}{2}$  1\ufe0f\u20e3 x²",
)
"""Short ones: what is special in each is easily seen."""

RUNS = (
    *("a" * 5000, "A" * 3000, "ab" * 2000, "aB" * 2000, "\u00e9" * 2000, "\u65e5\u672c" * 1000),
    *(" " * 5000, " " * 3000 + "x", "\n" * 3000, "\n" * 3000 + "x", "\r\n" * 1500, "\t \n" * 1000),
    *("1" * 3000, "=" * 5000, "=" * 1000 + "\n" * 1000, "'" * 2000, "a'" * 1000, "\0" * 2000),
    *("\u0301" * 2000, "\U0001f600" * 1000, "\u3000" * 2000, " \u00a0" * 1000, "x " * 2000),
    "0123456789abcdef" * 300,
)
"""Long runs without a place to cut: regular expressions count their steps, merges their length."""


MAX_ADDED = 64
"""Added tokens whose text is tried; Llama 3 has 256, nearly all of them reserved."""


def awkward_texts(added: Iterable[str] = ()) -> list[str]:
    """All of them, and a tokenizer's added tokens within text, glued and apart."""
    names = list(added)[:MAX_ADDED]
    apart = [f"before {name} after" for name in names]
    return [*TEXTS, *RUNS, *apart, *(f"a{name}{name}b\n" for name in names)]
