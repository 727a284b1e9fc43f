"""Grader processes under code that misbehaves: one line, one sample lost, no process left."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from services.reward.components import Case, Component, GradingError
from services.reward.grade import JobGrader
from services.reward.grader import GraderProcess, Limits
from services.reward.pool import Pool
from services.reward.python_process import PythonProcesses
from shared.job.spec import DataSpec, JobSpec, RewardSpec
from shared.wire.messages import Attempt, Digests, Sampling, Segment, Trajectory

T = TypeVar("T")
LINES = DataSpec(jsonl="rows.jsonl")
ROOMY = Limits()


def component(kind: str = "python", timeout_seconds: float = 1.0, **fields: Any) -> Component:
    return Component(RewardSpec(name="mine", kind=kind, timeout_seconds=timeout_seconds, **fields), LINES)


def written(folder: Path, body: str) -> str:
    """A reward file with `body`, as a job names it."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path = folder / "mine.py"
    path.write_text(f"import os, sys, time\n\ndef reward(answer_text, row):\n{lines}\n")
    return f"{path}:reward"


def with_pool(work: Callable[[Pool], Awaitable[T]], limits: Limits = ROOMY, size: int = 1) -> T:
    async def run() -> T:
        pool = Pool(size, limits, start_seconds=60)
        try:
            return await work(pool)
        finally:
            await pool.close()
            assert not [child for child in psutil.Process().children(recursive=True) if child.is_running()]

    return asyncio.run(run())


def failure(of: Component, limits: Limits = ROOMY) -> str:
    async def work(pool: Pool) -> str:
        with pytest.raises(GradingError) as raised:
            await pool.grade("k", of, Case("5", 1, {"answer": "5"}))
        return str(raised.value)

    text = with_pool(work, limits)
    assert "\n" not in text
    return text


def test_a_python_reward_gets_the_answer_and_the_row(tmp_path: Path) -> None:
    of = component(function=written(tmp_path, "return float(answer_text == row['answer']) + len(row) / 10"))

    async def work(pool: Pool) -> None:
        graded = await pool.grade("k", of, Case("5", 1, {"answer": "5", "level": 1}))
        assert graded.value == 1.2
        assert len(graded.source) == 64

    with_pool(work)


def test_an_importable_module_will_do(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        graded = await pool.grade("k", component(function="statistics:StatisticsError.mro"), Case("5", 1))
        assert graded.value

    with pytest.raises(GradingError, match="TypeError"):
        with_pool(work)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('no\\nsuch thing')", "mine.py:4: ValueError: no such thing"),
        ("return float('nan')", "returned nan, which is no finite number"),
        ("return float('inf')", "returned inf, which is no finite number"),
        ("return '1.0'", "returned '1.0' (str), which is no number"),
        ("return None", "returned None (NoneType), which is no number"),
        ("while True: pass", "took longer than 1 seconds and was killed"),
        ("time.sleep(60)", "took longer than 1 seconds and was killed"),
        ("sys.exit(3)", "mine.py:4: SystemExit: 3"),
        ("os._exit(3)", "its process ended with code 3 while grading"),
        ("os.abort()", "its process ended by SIGABRT while grading"),
        ("return len(bytearray(1 << 31))", "mine.py:4: MemoryError (memory_mebibytes is 64)"),
        ("while True: print('x' * 1000)", "printed more than 1048576 bytes and was killed"),
        ("while True: sys.stderr.write('x' * 1000)", "printed more than 1048576 bytes and was killed"),
        ("return reward(answer_text, row)", "mine.py:4: RecursionError"),
    ],
)
def test_what_user_code_does_wrong_is_said_in_one_line(tmp_path: Path, body: str, says: str) -> None:
    of = component(function=written(tmp_path, body), memory_mebibytes=64)
    assert says in failure(of, Limits(memory_mebibytes=64))


def test_a_leak_ends_at_the_limit_and_not_with_the_machine(tmp_path: Path) -> None:
    body = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"
    of = component(function=written(tmp_path, body), memory_mebibytes=64, timeout_seconds=10)
    says = failure(of, Limits(memory_mebibytes=64))
    assert "MemoryError" in says


def test_a_file_without_end_is_cut(tmp_path: Path) -> None:
    body = f"with open({str(tmp_path / 'out')!r}, 'wb') as out:\n    while True: out.write(b'x' * 65536)"
    says = failure(component(function=written(tmp_path, body), timeout_seconds=10), Limits(file_bytes=1 << 20))
    assert "File too large" in says or "SIGXFSZ" in says
    assert (tmp_path / "out").stat().st_size <= 1 << 20


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def reward(:\n    pass\n", "mine.py:1: SyntaxError"),
        ("import no_such_module\n", "mine.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("reward = 1\n", "has no function 'reward'"),
        ("raise SystemExit('bye')\n", "mine.py:1: SystemExit: bye"),
    ],
)
def test_a_file_that_does_not_import_says_where(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert says in failure(component(function=f"{tmp_path}/mine.py:reward"))


def test_a_missing_file_and_a_missing_module_are_named(tmp_path: Path) -> None:
    assert "no file" in failure(component(function=f"{tmp_path}/gone.py:reward"))
    assert "no_such_module" in failure(component(function="no_such_module:reward"))


def test_graded_code_sees_no_secret_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    of = component(function=written(tmp_path, "return float('HF_TOKEN' in os.environ)"))

    async def work(pool: Pool) -> None:
        assert (await pool.grade("k", of, Case("5", 1))).value == 0.0

    with_pool(work)


def test_a_pattern_that_backtracks_for_ever_is_killed_and_the_next_answer_is_graded() -> None:
    slow = component("regex", pattern=r"(a+)+$", timeout_seconds=0.5)

    async def work(pool: Pool) -> None:
        with pytest.raises(GradingError, match=r"longer than 0\.5 seconds"):
            await pool.grade("slow", slow, Case("a" * 64 + "b", 1))
        assert (await pool.grade("slow", slow, Case("aaa", 1))).value == 1.0
        assert pool.started == 2

    with_pool(work)


def test_one_that_hangs_does_not_hold_up_the_others() -> None:
    slow = component("regex", pattern=r"(a+)+$", timeout_seconds=5)

    async def work(pool: Pool) -> None:
        hanging = asyncio.create_task(pool.grade("slow", slow, Case("a" * 64 + "b", 1)))
        started = time.monotonic()
        for _ in range(20):
            assert (await pool.grade("slow", slow, Case("aaa", 1))).value == 1.0
        assert time.monotonic() - started < 4 and not hanging.done()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)

    with_pool(work, size=2)


def test_a_killed_grader_takes_what_it_started_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    assert "took longer" in failure(component(function=written(tmp_path, body)))
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while running(child):
        assert time.monotonic() < deadline, f"process {child} outlived its grader"


def test_a_grader_dies_with_the_service_even_while_it_hangs(tmp_path: Path) -> None:
    """The service is a child here, killed by -9 while its grader is in an endless loop."""
    script = tmp_path / "service.py"
    script.write_text(
        "import asyncio, sys\n"
        "from services.reward.grader import GraderProcess\n"
        "async def main():\n"
        "    process = GraderProcess()\n"
        "    await process.start()\n"
        "    print(process.pid, flush=True)\n"
        "    spec = {'name': 'r', 'kind': 'regex', 'pattern': '(a+)+$'}\n"
        "    ask = {'key': 'k', 'timeout_seconds': 60, 'spec': spec, 'data': {'jsonl': 'x'}}\n"
        "    await process.ask({**ask, 'op': 'prepare'}, 60)\n"
        "    print('hangs', flush=True)\n"
        "    await process.ask({**ask, 'op': 'grade', 'text': 'a' * 64 + 'b', 'tokens': 1, 'row': {}}, 60)\n"
        "asyncio.run(main())\n"
    )

    async def run() -> None:
        import sys

        service = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
        assert service.stdout is not None
        grader = int(await service.stdout.readline())
        await service.stdout.readline()
        assert running(grader)
        service.kill()
        await service.wait()
        deadline = time.monotonic() + 10
        while running(grader):
            assert time.monotonic() < deadline, "the grader outlived its service"
            await asyncio.sleep(0.02)

    asyncio.run(run())


def test_what_may_have_ended_the_last_service_is_graded_in_a_process_even_when_it_looks_cheap() -> None:
    reward = {"name": "right", "kind": "exact"}
    spec = JobSpec.model_validate({"name": "j", "model": "tiny", "data": {"jsonl": "x"}, "reward": [reward]})
    answer = Trajectory(
        sample="j/0/0", attempt=Attempt(1, 1), worker="w", text="12", row={"answer": 12}, finish_reason="stop",
        segments=[Segment(role="assistant", token_ids=bytes(4), mask=b"\x01")], sampling=Sampling(), started_at=0.0,
        finished_at=1.0, digests=Digests(),
    )  # fmt: skip

    async def work(pool: Pool) -> None:
        grader = JobGrader("j", spec, pool, PythonProcesses(1, start_seconds=60), name="r")
        assert (await grader.grade(answer)).total == 1.0 and pool.started == 0
        assert (await grader.grade(answer, alone=True)).total == 1.0 and pool.started == 1

    with_pool(work)


def test_a_request_is_answered_by_a_process_that_was_idle_for_long() -> None:
    async def run() -> None:
        process = GraderProcess()
        await process.start()
        try:
            answer = await process.ask({"op": "sample", "data": {"jsonl": "/nowhere"}, "timeout_seconds": 60}, 60)
            assert answer == {"row": None}
        finally:
            assert await process.kill() == -9
            assert not process.alive

    asyncio.run(run())


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
