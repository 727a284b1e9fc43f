"""What killed workers leave behind goes; what lives or belongs to another host stays."""

import os
import subprocess
import sys

from services.rollout.weights import sweep_dead


def test_only_the_caches_of_dead_workers_of_this_host_are_swept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = f"rollout-my-host-{os.getpid()}-aaaaaa"
    names = {
        "own": own,
        "alive": f"rollout-my-host-{os.getppid()}-bbbbbb",
        "dead": f"rollout-my-host-{ended.pid}-cccccc",
        "elsewhere": f"rollout-other-host-{ended.pid}-dddddd",
        "unknown": "something-else",
    }
    for name in names.values():
        (tmp_path / name / "job" / "1.1").mkdir(parents=True)
    sweep_dead(tmp_path, own)
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == set(names.values()) - {names["dead"]}


def test_no_caches_at_all_is_no_error(tmp_path):
    sweep_dead(tmp_path / "none", "rollout-my-host-1-aaaaaa")
    assert not (tmp_path / "none").exists()
