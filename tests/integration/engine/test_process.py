"""The engine as a process: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

PROMPT = [0, 5, 9, 200]


def load(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/v1/loads").json()["loads"][0]
    return found


def long_answer(**beside: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}} | beside


def test_it_says_where_it_listens_and_serves(start: Any, model_dir: Path) -> None:
    engine = start(model_dir)
    assert engine.line.startswith("listening on http://127.0.0.1:")
    assert httpx.get(f"{engine.url}/ready").status_code == 200
    assert engine.end() == 0


def test_help_comes_without_loading_torch() -> None:
    began = time.monotonic()
    shown = subprocess.run([sys.executable, "-m", "engine", "--help"], capture_output=True, text=True, check=True)
    assert "--model-path" in shown.stdout
    assert time.monotonic() - began < 5
    loaded = subprocess.run(
        [sys.executable, "-c", "import engine.settings, sys; print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert loaded.stdout.strip() == "False"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_and_answers_what_runs(
    start: Any, model_dir: Path, wait_for: Any, number: int
) -> None:
    engine = start(model_dir)
    found: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: found.append(httpx.post(f"{engine.url}/generate", json=long_answer(), timeout=60).json())
    )
    asking.start()
    wait_for(lambda: load(engine.url)["num_used_tokens"] > 20)
    began = time.monotonic()
    assert engine.end(number) == 0
    assert time.monotonic() - began < 2
    asking.join(5)
    assert found[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert found[0]["output_ids"]


def test_it_dies_with_its_parent(model_dir: Path, wait_for: Any, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'engine', '--model-path', sys.argv[1], '--port', '0'],"
        " stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with (tmp_path / "log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-c", program, str(model_dir)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait(10)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 5)
    parent.stdout.close()
    parent.stdin.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(start: Any, model_dir: Path, wait_for: Any, stream: bool) -> None:
    engine = start(model_dir)
    address = engine.url.removeprefix("http://").split(":")
    body = json.dumps(long_answer(stream=stream)).encode()
    with socket.create_connection((address[0], int(address[1]))) as client:
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: load(engine.url)["num_running_reqs"] == 1)
    wait_for(lambda: load(engine.url)["num_running_reqs"] == 0, 5)
    assert "sglang:num_aborted_requests_total 1.0" in httpx.get(f"{engine.url}/metrics").text


def test_a_taken_port_is_told_at_once(start: Any, model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        engine = start(model_dir, "--port", str(port))
        assert engine.process.wait(30) == 2
    assert engine.log.read_text() == f"engine: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_a_folder_without_weights_is_told_in_one_line(start: Any, model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text((model_dir / "config.json").read_text())
    engine = start(folder)
    assert engine.process.wait(30) == 2
    assert engine.log.read_text() == f"engine: model folder {folder} has no weights: no *.safetensors file in it\n"


def test_a_context_over_the_models_is_refused(start: Any, model_dir: Path) -> None:
    engine = start(model_dir, "--context-length", "10000")
    assert engine.process.wait(30) == 2
    assert "--context-length 10000 is over the model's 8192" in engine.log.read_text()


def test_a_body_over_the_limit_is_refused(start: Any, model_dir: Path) -> None:
    engine = start(model_dir, "--max-body-mib", "1")
    reply = httpx.post(f"{engine.url}/generate", content=b"[" + b"1," * 2**20, timeout=30)
    assert reply.status_code == 413
    assert reply.json()["error"]["message"] == "the body is larger than 1048576 bytes (--max-body-mib)"
    assert (
        httpx.post(
            f"{engine.url}/generate", json=long_answer() | {"sampling_params": {"max_new_tokens": 1}}
        ).status_code
        == 200
    )


def test_what_is_not_served_is_told(start: Any, model_dir: Path) -> None:
    engine = start(model_dir)
    assert httpx.get(f"{engine.url}/nothing").status_code == 404
    assert httpx.get(f"{engine.url}/generate").status_code == 405
    for content in (b"{", b"\xff", b"[]", b"3"):
        reply = httpx.post(f"{engine.url}/generate", content=content)
        assert reply.status_code == 400
        assert "\n" not in reply.text
    assert httpx.post(f"{engine.url}/pause_generation", json={"mode": "nap"}).status_code == 400
    assert httpx.post(f"{engine.url}/update_weights_from_disk", json={}).status_code == 400
    assert httpx.get(f"{engine.url}/ready").status_code == 200


def test_weights_of_another_shape_are_refused_by_name(start: Any, model_dir: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    other = tmp_path / "other"
    config = LlamaConfig.from_pretrained(model_dir)
    config.intermediate_size = 96
    LlamaForCausalLM(config).save_pretrained(other)
    engine = start(model_dir)
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    before = httpx.post(f"{engine.url}/generate", json={"input_ids": PROMPT, "sampling_params": sampling}).json()
    reply = httpx.post(
        f"{engine.url}/update_weights_from_disk", json={"model_path": str(other), "weight_version": "v1"}
    )
    assert reply.status_code == 400
    assert "intermediate 96 instead of 128" in reply.json()["message"]
    after = httpx.post(f"{engine.url}/generate", json={"input_ids": PROMPT, "sampling_params": sampling}).json()
    assert after["output_ids"] == before["output_ids"]
    assert httpx.get(f"{engine.url}/model_info").json()["weight_version"] == "default"


def test_an_engine_under_way_can_be_killed_outright(start: Any, model_dir: Path, wait_for: Any) -> None:
    engine = start(model_dir)
    failures: list[str] = []

    def ask() -> None:
        try:
            httpx.post(f"{engine.url}/generate", json=long_answer(), timeout=60)
        except httpx.TransportError as error:
            failures.append(type(error).__name__)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: load(engine.url)["num_running_reqs"] == 1)
    os.kill(engine.process.pid, signal.SIGKILL)
    asking.join(10)
    assert failures
