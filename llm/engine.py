"""xllamacpp's server in this process: how it is started, spoken to and ended.

Completions go through calls into the library, which push chunks back; what it offers by HTTP alone (its
vocabulary and properties) is asked through a socket in a folder that only this user can enter, and which goes
when the engine does.
"""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..pipeline.errors import EngineFailed, SetupError, WeightsError
from ..pipeline.threads import calm_openmp

log = logging.getLogger(__name__)

CACHE_RAM_MIB = 256
"""Prompts pushed out of their slots are kept in so much memory, oldest out first. The default model takes
12 KiB a token, so this holds some 20,000 tokens."""
ASK_TIMEOUT = 10.0
"""Seconds that an answer by HTTP may take; none waits for a completion."""

Chunk = Mapping[str, Any]
Push = Callable[[Chunk | Sequence[Chunk]], bool]


class Engine(Protocol):
    """All of these block, without the GIL, and may be called from several threads."""

    def complete(self, body: dict[str, Any], push: Push) -> None:
        """push: gets the chunks; True from it cancels."""
        ...

    def metrics(self) -> str:
        """Prometheus' text format."""
        ...

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One HTTP request, to its JSON. Raises EngineFailed for an error."""
        ...


class Server:
    """An Engine. model: a .gguf file. See LlamaCpp for the rest.

    Blocks while it loads. Raises WeightsError when the file cannot be loaded, SetupError when llama.cpp itself
    cannot. It ends, and its memory goes, with the last reference to it; that holds the GIL for 0.1 s.
    """

    def __init__(self, model: Path, *, context: int, slots: int, threads: int, batch: int) -> None:
        xllamacpp = import_engine()
        params: Any = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx = context * slots
        params.n_parallel = slots
        params.n_batch = params.n_ubatch = batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.use_jinja = True
        params.endpoint_metrics = True
        params.verbosity = -1
        params.cache_ram_mib = CACHE_RAM_MIB
        # No similarity exceeds 1, so who comes to a slot always has its contents saved, and looks for its own.
        params.slot_prompt_similarity = 1.0
        params.cache_idle_slots = False
        params.n_threads_http = 1
        folder = tempfile.mkdtemp(prefix="antiphon-")  # of mode 0700
        self._socket = str(Path(folder) / "engine.sock")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        params.hostnames = [self._socket]
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise WeightsError(
                f"llama.cpp cannot load {model} (llm.model): it must be a whole .gguf file of a chat model, "
                f"with memory for {context * slots} tokens (llm.context x llm.slots)"
            ) from error
        # The first grammar of a process takes 0.7 s, in which no slot computes.
        self.complete(
            {"prompt": "a", "max_tokens": 1, "grammar": "%llguidance {}\nstart: /a/"}, lambda chunks: False
        )

    def complete(self, body: dict[str, Any], push: Push) -> None:
        self._server.handle_completions(body, push)

    def metrics(self) -> str:
        return self._server.handle_metrics()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("engine")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(ASK_TIMEOUT)
            connection.sock.connect(self._socket)
            sent = None if body is None else json.dumps(body)
            connection.request(
                method, path, sent, {"Content-Type": "application/json", "Connection": "close"}
            )
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineFailed(f"llama.cpp did not answer {path} ({type(error).__name__})") from error
        finally:
            connection.close()
        if response.status != 200:
            raise EngineFailed(f"llama.cpp answered {path} with status {response.status}")
        return json.loads(answer)


def read_metrics(exposition: str) -> dict[str, float]:
    """Prometheus' text format, llamacpp's samples without labels: by name, the prefix taken off."""
    samples = (line.rpartition(" ") for line in exposition.splitlines() if line.startswith("llamacpp:"))
    return {name.removeprefix("llamacpp:"): float(value) for name, _, value in samples}


def import_engine() -> Any:
    """xllamacpp, whose OpenMP threads must not spin for long while they wait.

    By default they do: two threads beside other work on two cores then give 0.5 to 2.6 tokens/s, against
    14 to 17. OpenMP reads its policy once, when it is loaded.
    """
    unset = "OMP_WAIT_POLICY" not in os.environ
    calm_openmp()
    if os.environ["OMP_WAIT_POLICY"].lower() != "passive" or (unset and _mapped("libgomp.so.1")):
        log.warning("OpenMP's threads will spin: set OMP_WAIT_POLICY=passive before the process starts")
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise SetupError(
            f"llama.cpp cannot be loaded: {error}; it needs the system's OpenMP library, "
            "on Debian and Ubuntu the package libgomp1"
        ) from error


def _mapped(library: str) -> bool:
    if sys.platform != "linux":
        return False
    with open("/proc/self/maps") as maps:
        return any(line.rstrip().endswith(f"/{library}") for line in maps)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
