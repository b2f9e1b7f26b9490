"""One real server in a process of its own, as its users start it, for clients that know nothing of it."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DATA

LISTENING = re.compile(r"listening on ws://(\S+)/v1/realtime")


@pytest.fixture(scope="session")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address as clients want it, "http://127.0.0.1:port/v1". Stopped as a supervisor would."""
    command = [str(Path(sys.executable).parent / "antiphon"), "serve", "--port", "0"]
    for setting in ("auth.keys=none", "embeddings.model=all-minilm-l6-v2"):
        command += ["--set", setting]
    folder = tmp_path_factory.mktemp("server")
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        try:
            for line in process.stderr:
                lines.append(line)
                if found := LISTENING.search(line):
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(lines))
            rest = threading.Thread(target=lines.extend, args=(process.stderr,))
            rest.start()
            try:
                yield f"http://{found[1]}/v1"
            finally:
                process.send_signal(signal.SIGTERM)
                rest.join(60)
            assert process.wait(60) == 0, "".join(lines)
        finally:
            process.kill()
    assert not [line for line in lines if "Traceback" in line], "".join(lines)


@pytest.fixture(scope="session")
def question() -> Path:
    """A recording of "Do you feel as though you could go through with something rather unusual?"."""
    return DATA / "question.wav"
