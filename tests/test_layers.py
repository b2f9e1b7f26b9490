"""A module imports only downward, or from its own layer, and never in a circle; and only relatively."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "asr", "llm", "tts", "transport", "benchmarks")

VOCABULARY, CONTRACTS, LOGIC, SHELLS, BACKENDS, TOP = range(6)

LAYERS = {
    **dict.fromkeys(("pipeline.audio", "pipeline.events", "pipeline.errors", "pipeline.tools"), VOCABULARY),
    **dict.fromkeys(("asr.base", "llm.base", "tts.base"), CONTRACTS),
    **dict.fromkeys(
        (
            *("pipeline.turn", "pipeline.scheduler", "pipeline.conversation", "pipeline.playback"),
            "pipeline.admission",
            *("pipeline.catalog", "asr.vad", "asr.streaming", "tts.text", "tts.spoken", "tts.numbers"),
            *("transport.realtime", "transport.schema", "transport.objects", "transport.session_object"),
            *("transport.limits", "transport.cors", "transport.session_tools"),
            *("pipeline.calls", "pipeline.idle", "pipeline.editing"),
            *("transport.generation", "transport.chat_schema"),
            *("transport.chat_request", "transport.chat_encoder"),
            *("transport.tool_choice", "transport.responses_schema", "transport.responses_request"),
            *("transport.responses_encoder", "transport.responses_store"),
            *("transport.custom_tools", "transport.completion_schema", "transport.completion_encoder"),
            *("llm.templates", "llm.stops", "llm.thinking", "llm.tools", "llm.reading", "llm.structured"),
            *("asr.recording", "asr.words", "asr.subtitles", "asr.languages"),
            *("llm.grammars", "llm.patterns", "llm.chunks", "llm.slots"),
        ),
        LOGIC,
    ),
    "pipeline.cli": TOP,
}
"""Of the modules that are somewhere else than most of their package, which `_layer` knows."""

MOSTLY = {
    "pipeline": SHELLS,
    **dict.fromkeys(("asr", "llm", "tts"), BACKENDS),
    **dict.fromkeys(("transport", "benchmarks"), TOP),
}


def _layer(module: str) -> int:
    return LAYERS.get(module, MOSTLY[module.partition(".")[0]])


def _imports(module: str) -> Iterator[str]:
    """Our modules that a module imports, those of `if TYPE_CHECKING` and of function bodies too."""
    package, name = module.split(".")
    for node in ast.walk(ast.parse((ROOT / package / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            path = [package] * (node.level == 1) + (node.module or "").split(".") * bool(node.module)
            assert node.level or path[0] != "antiphon", f"{module} imports {node.module} absolutely"
            if node.level:
                yield from {".".join([*path, alias.name][:2]) for alias in node.names}


MODULES = {
    f"{package}.{path.stem}"
    for package in PACKAGES
    for path in (ROOT / package).glob("*.py")
    if path.stem != "__init__"
}
GRAPH = {module: set(_imports(module)) for module in sorted(MODULES)}


@pytest.mark.parametrize("module", GRAPH)
def test_imports_go_downward(module: str) -> None:
    upward = {other for other in GRAPH[module] if other in MODULES and _layer(other) > _layer(module)}
    assert not upward, f"{module} (layer {_layer(module)}) imports upward"


def test_no_circles() -> None:
    TopologicalSorter(GRAPH).prepare()


def test_every_placed_module_exists_and_the_parser_sees_imports() -> None:
    assert set(LAYERS) <= MODULES
    assert "pipeline.errors" in GRAPH["pipeline.events"]
    assert "pipeline.events" in GRAPH["asr.base"]
    assert "pipeline.logs" in GRAPH["pipeline.cli"]  # from . import logs
