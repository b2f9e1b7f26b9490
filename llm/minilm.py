"""Sentence embeddings: a small BERT computed with numpy, on a thread of its own.

    texts --tokenizer--> word pieces --sorted by length, in batches--> Worker --> Bert --> vectors, in order

The model is as its authors' own library computes it: the mean over the last layer's vectors of all word pieces,
[CLS] and [SEP] among them, scaled to length 1. Only its numbers are read from the file (safetensors: a
header of JSON, then float32s). A text that is too long is refused rather than cut off, for nobody would
see which half of it was compared.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]
from tokenizers import Tokenizer

from ..pipeline.errors import BadRequest, WeightsError
from ..pipeline.worker import Worker
from .base import Embedding

if TYPE_CHECKING:
    from ..pipeline.settings import Settings
    from ..pipeline.weights import WeightStore

Floats = NDArray[np.float32]

BATCH_TOKENS = 1024
"""Word pieces in one batch, padding included: half a second of one slow core, then the next caller has a turn."""

MOST_TOKENS = 300_000
"""Word pieces of one call, OpenAI's limit."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices are (in, out). qkv: the three projections side by side."""

    qkv: Floats
    qkv_bias: Floats
    out: Floats
    out_bias: Floats
    norm: tuple[Floats, Floats]
    up: Floats
    up_bias: Floats
    down: Floats
    down_bias: Floats
    last_norm: tuple[Floats, Floats]


class Bert:
    """A BERT encoder and the mean over its output. Holds weights alone; threads may share it.

    tensors: by their names in the weights file, float32. heads: of attention. epsilon: of normalisation.
    Raises KeyError or ValueError for tensors that are not one model's.
    """

    def __init__(self, tensors: dict[str, Floats], *, layers: int, heads: int, epsilon: float) -> None:
        self._words = tensors["embeddings.word_embeddings.weight"]
        # Every text is of type 0, so that vector is part of the position's.
        kind: Floats = tensors["embeddings.token_type_embeddings.weight"][0]
        self._places: Floats = tensors["embeddings.position_embeddings.weight"] + kind
        self._norm = _pair(tensors, "embeddings.LayerNorm")
        self._layers = [_layer(tensors, f"encoder.layer.{number}") for number in range(layers)]
        self._heads = heads
        self._epsilon = epsilon
        self.vocabulary, self.dimensions = self._words.shape
        self.longest = len(self._places)
        if self.dimensions % heads:
            raise ValueError("the heads do not divide the vectors")

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Vectors of length 1, shape (texts, dimensions). texts: ids, 1 to `longest` each."""
        lengths = np.array([len(text) for text in texts])
        width = int(lengths.max())
        ids = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        there = np.arange(width) < lengths[:, None]
        ignored = np.where(there, np.float32(0), np.float32(-1e9))[:, None, None, :]
        x = self._normed(self._words[ids] + self._places[:width], self._norm)
        for layer in self._layers:
            x = self._normed(x + self._attended(x, layer, ignored), layer.norm)
            inner = gelu(x @ layer.up + layer.up_bias)
            further: Floats = inner @ layer.down + layer.down_bias
            x = self._normed(x + further, layer.last_norm)
        mean = (x * there[:, :, None]).sum(axis=1) / lengths[:, None].astype(np.float32)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _attended(self, x: Floats, layer: _Layer, ignored: Floats) -> Floats:
        texts, width, size = x.shape
        qkv = (x @ layer.qkv + layer.qkv_bias).reshape(texts, width, 3, self._heads, -1)
        query, key, value = qkv.transpose(2, 0, 3, 1, 4)
        scores = query @ key.swapaxes(-1, -2)
        scores *= np.float32((size // self._heads) ** -0.5)
        scores += ignored
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(0, 2, 1, 3).reshape(texts, width, size)
        return seen @ layer.out + layer.out_bias

    def _normed(self, x: Floats, norm: tuple[Floats, Floats]) -> Floats:
        weight, bias = norm
        x = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(variance + np.float32(self._epsilon)) * weight + bias


def gelu(x: Floats) -> Floats:
    """x times the normal distribution function at x, to 3e-7 of max(1, |x|).

    By Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, whose own error is 1.5e-7.
    """
    z: Floats = np.abs(x) * np.float32(0.5**0.5)
    t: Floats = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * z)
    tail: Floats = np.full_like(x, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = tail * t + np.float32(coefficient)
    tail = tail * t * np.exp(-z * z)
    return np.maximum(x, 0) - np.abs(x) * tail * np.float32(0.5)


def _pair(tensors: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def _layer(tensors: dict[str, Floats], at: str) -> _Layer:
    parts = [_pair(tensors, f"{at}.attention.self.{name}") for name in ("query", "key", "value")]
    out, up, down = (
        _pair(tensors, f"{at}.{name}.dense") for name in ("attention.output", "intermediate", "output")
    )

    def across(weight: Floats) -> Floats:
        return np.ascontiguousarray(weight.T)

    return _Layer(
        qkv=across(np.concatenate([weight for weight, _ in parts])),
        qkv_bias=np.concatenate([bias for _, bias in parts]),
        out=across(out[0]),
        out_bias=out[1],
        norm=_pair(tensors, f"{at}.attention.output.LayerNorm"),
        up=across(up[0]),
        up_bias=up[1],
        down=across(down[0]),
        down_bias=down[1],
        last_norm=_pair(tensors, f"{at}.output.LayerNorm"),
    )


# --- the embedder ---------------------------------------------------------------------------------------


class MiniLm:
    """An Embedder. model: the folder of its files. name: as clients know it.

    Raises WeightsError when the files are not those of a BERT. Blocks while it loads, for a tenth of a second.
    """

    def __init__(self, model: Path, name: str) -> None:
        self.name = name
        try:
            config = json.loads((model / "config.json").read_bytes())
            if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
                raise ValueError("it is no BERT with GELU")
            self._bert = Bert(
                dict(read_tensors(model / "model.safetensors")),
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                epsilon=config["layer_norm_eps"],
            )
            self._tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
        except Exception as error:
            # The tokenizer's own faults have no class of their own.
            raise WeightsError(
                f"{model} (embeddings.model): cannot be read as an embedding model: "
                f"{type(error).__name__}: {error}"
            ) from error
        # More threads of numpy's spin while they wait for each other: on two cores that others use too, two
        # took 7 to 30 s for what one does in 1 s. Nothing else in this process multiplies matrices with numpy.
        threadpool_limits(1, user_api="blas")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._begin, self._end = self._tokenizer.encode("").ids
        self.dimensions = self._bert.dimensions
        self.vocabulary = self._bert.vocabulary
        self.longest = self._bert.longest
        self._worker: Worker[Sequence[Sequence[int]], Floats] = Worker("embeddings", self._run)

    async def embed(self, texts: Sequence[str | Sequence[int]], *, owner: str) -> Sequence[Embedding]:
        """One embedding a text, in order. A text is itself, or the ids of its word pieces.

        Raises BadRequest (param "input") for one that is too long or holds an id that there is not, Overloaded
        when too many wait. Cancelling takes out what is not computed yet.
        """
        pieces = await asyncio.to_thread(self._pieces, texts)
        now = asyncio.get_running_loop().time()
        vectors: dict[int, Floats] = {}
        for rows in batches([len(text) for text in pieces]):
            # One after the other: between two of them it is somebody else's turn.
            found = await self._worker.submit([pieces[row] for row in rows], owner=owner, deadline=now)
            vectors.update(zip(rows, found, strict=True))
        return [Embedding(vectors[row], len(text)) for row, text in enumerate(pieces)]

    async def aclose(self) -> None:
        """Let the batch that runs end and stop the thread. Idempotent."""
        await self._worker.aclose()

    def _run(self, batch: Sequence[Sequence[Sequence[int]]]) -> list[Floats]:
        return [self._bert.embed(texts) for texts in batch]

    def _pieces(self, texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
        strings = [text for text in texts if isinstance(text, str)]
        encoded = iter(self._tokenizer.encode_batch(strings))
        pieces = [next(encoded).ids if isinstance(text, str) else self._framed(text) for text in texts]
        for number, text in enumerate(pieces):
            if len(text) > self.longest:
                raise BadRequest(
                    f"The text at index {number} has {len(text)} tokens; "
                    f"the model {self.name} reads at most {self.longest}.",
                    param="input",
                    code="context_length_exceeded",
                )
        if (count := sum(map(len, pieces))) > MOST_TOKENS:
            raise BadRequest(
                f"The texts have {count} tokens; one request may have {MOST_TOKENS}.",
                param="input",
                code="too_many_tokens",
            )
        return pieces

    def _framed(self, ids: Sequence[int]) -> list[int]:
        """The ids with [CLS] and [SEP] around them, where they are not there yet."""
        for id in ids:
            if not 0 <= id < self.vocabulary:
                raise BadRequest(
                    f"The model {self.name} has the tokens 0 to {self.vocabulary - 1}; not {id}.",
                    param="input",
                    code="invalid_value",
                )
        begin = [] if ids and ids[0] == self._begin else [self._begin]
        end = [] if ids and ids[-1] == self._end else [self._end]
        return [*begin, *ids, *end]


def batches(lengths: Sequence[int], most: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Which texts are computed together, by their index: like lengths, at most `most` pieces with padding."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if batch and lengths[row] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def read_tensors(path: Path) -> Iterator[tuple[str, Floats]]:
    """The float32 tensors of a safetensors file. Raises ValueError, KeyError for a file that is none."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        tensor = np.frombuffer(data[8 + size + begin : 8 + size + end], "<f4")
        yield name, tensor.reshape(entry["shape"])


def load(settings: Settings, store: WeightStore) -> MiniLm:
    """The embedder that `embeddings.model` names. Raises WeightsError; blocks while it loads."""
    name = settings.embeddings.model
    return MiniLm(store.fetch(name), name)
