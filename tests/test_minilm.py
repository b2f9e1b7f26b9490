"""The embedding model: its parts on small numbers, and the real one against what its authors publish."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf

from antiphon.llm.minilm import Bert, MiniLm, batches, gelu, load, read_tensors
from antiphon.pipeline.errors import BadRequest, WeightsError
from antiphon.pipeline.settings import load as load_settings
from antiphon.pipeline.weights import WeightStore

NAME = "all-minilm-l6-v2"


def test_gelu_is_right_to_3e_7() -> None:
    x = np.linspace(-12, 12, 400_001, dtype=np.float32)
    exact = x.astype(np.float64)
    exact = exact * (1 + erf(exact / 2**0.5)) / 2
    assert (np.abs(gelu(x) - exact) / np.maximum(1, np.abs(exact))).max() < 3e-7


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_batches_hold_every_text_once_and_no_more_than_they_may(lengths: list[int], most: int) -> None:
    found = list(batches(lengths, most))
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= most
    longest = [max(lengths[row] for row in batch) for batch in found]
    assert longest == sorted(longest), "like lengths lie together"


def small(words: int = 7, size: int = 4, *, longest: int = 6) -> Bert:
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, size),
        "embeddings.position_embeddings.weight": (longest, size),
        "embeddings.token_type_embeddings.weight": (2, size),
    }
    for at in (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ):
        shapes |= {f"encoder.layer.0.{at}.weight": (size, size), f"encoder.layer.0.{at}.bias": (size,)}
    shapes |= {"encoder.layer.0.intermediate.dense.weight": (8, size)}
    shapes |= {"encoder.layer.0.intermediate.dense.bias": (8,)}
    shapes |= {"encoder.layer.0.output.dense.weight": (size, 8), "encoder.layer.0.output.dense.bias": (size,)}
    for at in (
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm",
    ):
        shapes |= {f"{at}.weight": (size,), f"{at}.bias": (size,)}
    tensors = {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return Bert(tensors, layers=1, heads=2, epsilon=1e-12)


def test_what_stands_beside_a_text_in_its_batch_makes_no_difference() -> None:
    bert = small()
    texts = [[1, 2], [3, 4, 5, 6, 1], [2]]
    together = bert.embed(texts)
    assert together.dtype == np.float32
    assert np.linalg.norm(together, axis=1) == pytest.approx([1, 1, 1], abs=1e-6)
    for text, vector in zip(texts, together, strict=True):
        assert bert.embed([text])[0] == pytest.approx(vector, abs=1e-5)


def test_order_within_a_text_matters() -> None:
    bert = small()
    assert np.abs(bert.embed([[1, 2, 3]]) - bert.embed([[3, 2, 1]])).max() > 1e-3


def test_tensors_are_read_by_name(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype="<f4")
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "ids": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
            "a.b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        }
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers.tobytes() + bytes(8))
    [(name, tensor)] = read_tensors(path)
    assert name == "a.b"
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_folder_that_holds_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"embeddings\.model"):
        MiniLm(tmp_path, "x")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_act": "silu"}')
    with pytest.raises(WeightsError, match="no BERT"):
        MiniLm(tmp_path, "x")


# --- the real one ---------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def model() -> AsyncIterator[MiniLm]:
    settings = load_settings(environ={}, overrides=[f"embeddings.model={NAME}"])
    store = WeightStore(settings.weights.root)
    found = await asyncio.to_thread(load, settings, store)
    yield found
    await found.aclose()


@pytest.mark.model
async def test_vectors_are_those_that_its_authors_publish(model: MiniLm) -> None:
    texts = [
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
        "This is an example sentence",
    ]
    found = await model.embed(texts, owner="test")
    assert [embedding.tokens for embedding in found] == [7, 7, 8, 7, 7]
    vectors = np.stack([embedding.vector for embedding in found])
    assert vectors.shape == (5, 384)
    # From the model's card: the example of its widget, and the beginning of its example's first vector.
    assert vectors[0] @ vectors[1:4].T == pytest.approx([0.695, 0.943, 0.257], abs=5e-4)
    assert vectors[4][:5] == pytest.approx([0.0677, 0.0635, 0.0487, 0.0793, 0.0374], abs=5e-5)


@pytest.mark.model
async def test_one_by_one_and_together_are_the_same(model: MiniLm) -> None:
    texts = ["a cat", "the tax law of 1913, as amended", "猫", "", "word " * 200]
    together = await model.embed(texts, owner="test")
    for text, embedding in zip(texts, together, strict=True):
        [alone] = await model.embed([text], owner="test")
        assert alone.vector == pytest.approx(embedding.vector, abs=1e-6)
        assert alone.tokens == embedding.tokens


@pytest.mark.model
async def test_ids_are_of_its_own_tokens(model: MiniLm) -> None:
    text, bare, framed = await model.embed(["a cat", [1037, 4937], [101, 1037, 4937, 102]], owner="test")
    assert text.tokens == bare.tokens == framed.tokens == 4
    assert bare.vector == pytest.approx(text.vector, abs=1e-6)
    assert framed.vector == pytest.approx(text.vector, abs=1e-6)


@pytest.mark.model
async def test_what_is_too_long_is_refused(model: MiniLm) -> None:
    [embedding] = await model.embed(["word " * 510], owner="test")
    assert embedding.tokens == model.longest == 512
    for given_ in (["fine", "word " * 511], [[5] * 511], [[model.vocabulary]], ["word " * 400] * 800):
        with pytest.raises(BadRequest) as caught:
            await model.embed(given_, owner="test")
        assert caught.value.param == "input"
