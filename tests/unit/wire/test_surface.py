"""A ratchet: what `shared` holds is a closed list, `shared.wire` has a budget of lines, and neither pulls in torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED = Path(__file__).parents[3] / "shared"

# Where something is added, say in the same change why it crosses a wire or is the same in every process's life.
PACKAGES = {"wire", "wire/bus", "job", "policy"}
WIRE = {
    "__init__", "jobs", "ledger", "messages", "service", "settings", "telemetry", "topics",
    "bus/__init__", "bus/api", "bus/consume", "bus/declare", "bus/drift", "bus/follow", "bus/jetstream", "bus/keyvalue",
    "bus/link", "bus/locks", "bus/memory", "bus/memory_core", "bus/memory_streams", "bus/nats", "bus/objects",
    "bus/publish", "bus/pull", "bus/services", "bus/signal", "bus/subjects",
}  # fmt: skip
WIRE_LINES = 4300
FILE_LINES = 500
MESSAGES_LINES = 700  # one schema a message, in one place


def modules(folder: Path) -> set[str]:
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_shared_has_three_parts():
    found = {path.parent.relative_to(SHARED).as_posix() for path in SHARED.rglob("*.py")} - {"."}
    assert found == PACKAGES


def test_the_modules_of_wire_are_a_closed_list():
    assert modules(SHARED / "wire") == WIRE


def test_wire_stays_in_its_budget():
    assert sum(lines(path) for path in (SHARED / "wire").rglob("*.py")) <= WIRE_LINES
    for path in (SHARED / "wire").rglob("*.py"):
        assert lines(path) <= (MESSAGES_LINES if path.stem == "messages" else FILE_LINES), path


def test_only_the_bus_knows_nats():
    for path in SHARED.parent.rglob("*.py"):
        if SHARED / "wire" / "bus" in path.parents or not path.is_relative_to(SHARED):
            continue
        text = path.read_text(encoding="utf-8")
        assert "import nats" not in text and "from nats" not in text, path


def test_importing_wire_imports_no_torch_and_no_service():
    names = ", ".join(f"shared.wire.{name.replace('/', '.')}" for name in sorted(WIRE) if not name.endswith("__init__"))
    foreign = ("torch", "transformers", "services", "gateway", "engine")
    program = f"import sys, {names}; print([m for m in sys.modules if m.split('.')[0] in {foreign}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
