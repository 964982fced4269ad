"""Tokenizers: a vocabulary of words or characters, and byte pair encoding (Sennrich et al., arXiv:1508.07909).

Both are built from the training texts and are saved as JSON next to the weights.  A tokenizer of another library needs
neither: its lists of token indices are data for `ws.data.Ragged`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from wholestep.errors import InputError, OptionError, UsageError

Ids = NDArray[np.int32]
T = TypeVar("T", bound="Tokenizer")
UNKNOWN = "<unknown>"
_WORDS = re.compile(r"\w+|[^\w\s]")
_CHUNKS = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")  # GPT-2's chunks: a word includes the space before it


class Tokenizer:
    """The base class of tokenizers: texts to arrays of int32 token indices, and back."""

    def __len__(self) -> int:
        raise NotImplementedError

    @overload
    def encode(self, text: str) -> Ids: ...
    @overload
    def encode(self, text: list[str]) -> list[Ids]: ...
    def encode(self, text: str | list[str]) -> Ids | list[Ids]:
        """The token numbers of a text; for several texts a list of arrays, as data for `ws.data.Ragged`."""
        if isinstance(text, str):
            return np.array(self._numbers(text), np.int32)
        return [np.array(self._numbers(_need_text(t)), np.int32) for t in text]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers."""
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Write the tokenizer as JSON.  Example: `vocabulary.save("words.json")`."""
        text = json.dumps({"kind": type(self).__name__, **self._record()}, ensure_ascii=False, indent=0)
        target = Path(path)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(target)

    @classmethod
    def load(cls: type[T], path: str | PathLike[str]) -> T:
        """Read what `save` wrote.  Example: `ws.data.Vocabulary.load("words.json")`."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if record.pop("kind") != cls.__name__:
                raise ValueError("its kind is another")
            out = object.__new__(cls)
            out._restore(record)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{path} is not a {cls.__name__}: {error}. Write one by save(path).") from None
        return out

    def _numbers(self, text: str) -> list[int]:
        raise NotImplementedError

    def _record(self) -> dict[str, Any]:
        raise NotImplementedError

    def _restore(self, record: dict[str, Any]) -> None:
        raise NotImplementedError


class Vocabulary(Tokenizer):
    """The words or characters of texts, numbered by decreasing frequency; unknown ones have the index 0.

    Words are in lower case, and a punctuation mark is a word.

    Args:
        texts: the training texts.
        by: "words" or "characters".
        size: the largest number of entries; None: all.
        least: entries that occur less often are left out.

    Example::

        words = ws.data.Vocabulary(texts, size=10000)
        model = Sentiment(vocabulary=len(words))
        ws.fit(model, ws.data.Ragged(words.encode(texts), labels), loss="cross_entropy")
        words.save("words.json")
    """

    by: Literal["words", "characters"]

    def __init__(
        self,
        texts: Iterable[str],
        by: Literal["words", "characters"] = "words",
        *,
        size: int | None = None,
        least: int = 1,
    ) -> None:
        if by not in ("words", "characters"):
            raise OptionError(f"Vocabulary: by={by!r}: expected 'words' or 'characters'.")
        _need_size("Vocabulary", size if size is not None else 2, 2)
        self.by = by
        counts = Counter(entry for text in _need_texts(texts) for entry in self._divide(_need_text(text)))
        often = sorted((entry for entry, n in counts.items() if n >= least), key=lambda e: (-counts[e], e))
        self._restore({"by": by, "entries": [UNKNOWN, *often][:size]})

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"a vocabulary of {len(self)} {self.by}"

    def decode(self, ids: Iterable[int]) -> str:
        """The entries of some numbers; words are separated by spaces."""
        return (" " if self.by == "words" else "").join(self.entries[int(i)] for i in ids)

    def _divide(self, text: str) -> Sequence[str]:
        return text if self.by == "characters" else _WORDS.findall(text.lower())

    def _numbers(self, text: str) -> list[int]:
        return [self._number.get(entry, 0) for entry in self._divide(text)]

    def _record(self) -> dict[str, Any]:
        return {"by": self.by, "entries": self.entries}

    def _restore(self, record: dict[str, Any]) -> None:
        self.by = record["by"]
        self.entries: list[str] = record["entries"]
        self._number = {entry: i for i, entry in enumerate(self.entries)}


class BytePairs(Tokenizer):
    """Byte pair encoding: merges the most frequent pair of tokens, at first UTF-8 bytes, until there are `size` tokens.

    Every text can be encoded, and `decode(encode(text))` is the text.  Merges do not cross the space before a word.

    Args:
        texts: the training texts.
        size: the number of tokens, 256 of them for single bytes.

    Example: `tokens = ws.data.BytePairs(texts, size=1000)`.
    """

    def __init__(self, texts: Iterable[str], size: int = 1000) -> None:
        _need_size("BytePairs", size, 256)
        chunks = Counter(chunk for text in _need_texts(texts) for chunk in _CHUNKS.findall(_need_text(text)))
        words = {tuple(chunk.encode()): n for chunk, n in chunks.items()}
        self._restore({"merges": _find_merges(words, size - 256)})

    def __len__(self) -> int:
        return 256 + len(self.merges)

    def __repr__(self) -> str:
        return f"byte pairs of {len(self)} numbers"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers; bytes that are no text become the replacement character."""
        return b"".join(self._bytes[int(i)] for i in ids).decode("utf-8", errors="replace")

    def _numbers(self, text: str) -> list[int]:
        return [number for chunk in _CHUNKS.findall(text) for number in self._chunk(chunk)]

    def _chunk(self, chunk: str) -> tuple[int, ...]:
        if chunk not in self._cache:
            ids = tuple(chunk.encode())
            while len(ids) > 1:
                pair = min(pairwise(ids), key=lambda p: self._rank.get(p, len(self)))
                if pair not in self._rank:
                    break
                ids = _merge(ids, pair, 256 + self._rank[pair])
            self._cache[chunk] = ids
        return self._cache[chunk]

    def _record(self) -> dict[str, Any]:
        return {"merges": self.merges}

    def _restore(self, record: dict[str, Any]) -> None:
        self.merges: list[tuple[int, int]] = [(int(a), int(b)) for a, b in record["merges"]]
        self._rank = {pair: i for i, pair in enumerate(self.merges)}
        self._bytes = [bytes([i]) for i in range(256)]
        for a, b in self.merges:
            self._bytes.append(self._bytes[a] + self._bytes[b])
        self._cache: dict[str, tuple[int, ...]] = {}


def _find_merges(chunks: dict[tuple[int, ...], int], count: int) -> list[tuple[int, int]]:
    """Merge the most frequent pair (the smallest of equal ones) repeatedly; only chunks with it are recounted."""
    words = list(chunks.items())
    pairs, where = Counter[tuple[int, int]](), dict[tuple[int, int], set[int]]()
    for i, (ids, n) in enumerate(words):
        _count_pairs(pairs, where, ids, i, n)
    merges = list[tuple[int, int]]()
    while len(merges) < count:
        pair = max(pairs, key=lambda p: (pairs[p], -p[0], -p[1]), default=None)
        if pair is None or pairs[pair] < 2:
            break
        for i in where.pop(pair):
            ids, n = words[i]
            for old in pairwise(ids):
                pairs[old] -= n
            words[i] = merged, n = _merge(ids, pair, 256 + len(merges)), n
            _count_pairs(pairs, where, merged, i, n)
        del pairs[pair]
        merges.append(pair)
    return merges


def _count_pairs(
    pairs: Counter[tuple[int, int]], where: dict[tuple[int, int], set[int]], ids: tuple[int, ...], word: int, n: int
) -> None:
    for pair in pairwise(ids):
        pairs[pair] += n
        where.setdefault(pair, set()).add(word)


def _merge(ids: tuple[int, ...], pair: tuple[int, int], number: int) -> tuple[int, ...]:
    out, i = list[int](), 0
    while i < len(ids):
        if ids[i : i + 2] == pair:
            out.append(number)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return tuple(out)


def _need_texts(texts: Any) -> Any:
    if isinstance(texts, str):
        raise UsageError("a list of texts is expected; received one text. Write [text].")
    return texts


def _need_text(text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"a text is a str; received {type(text).__name__}: {text!r:.40}.")
    return text


def _need_size(who: str, size: object, least: int) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise OptionError(f"{who}: size must be an integer of at least {least}; received {size!r}.")
