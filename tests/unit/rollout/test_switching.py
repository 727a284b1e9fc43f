"""The worker's decisions: versions, engine changes, jobs."""

from services.rollout.backoff import Backoff
from services.rollout.switching import (
    Change,
    Flags,
    Loaded,
    Offer,
    choose,
    engine_change,
    in_turn,
    leaves,
    shape_of,
    wanted_version,
)
from shared.wire.messages import Version

NEW = Version(5, 1)
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "vocab_size": 259}


def test_the_newest_version_is_wanted_unless_one_is_pinned() -> None:
    assert wanted_version(pinned="", announced=NEW, holds_evaluation=False, holding="4.1") == "5.1"
    assert wanted_version(pinned="3.1", announced=NEW, holds_evaluation=False, holding="4.1") == "3.1"
    assert wanted_version(pinned="", announced=None, holds_evaluation=False, holding="") == ""


def test_nothing_changes_under_evaluation_samples() -> None:
    assert wanted_version(pinned="", announced=NEW, holds_evaluation=True, holding="4.1") == "4.1"
    assert wanted_version(pinned="3.1", announced=NEW, holds_evaluation=True, holding="4.1") == "4.1"


def change(now: Loaded | None, **wanted: object) -> Change:
    fields = {"job": "a", "flags": Flags(), "shape": "s", "version": "5.1"} | wanted
    return engine_change(now, **fields)  # type: ignore[arg-type]


def test_versions_of_one_job_are_updates_and_another_job_only_where_it_fits() -> None:
    now = Loaded(job="a", flags=Flags(), shape="s", version="4.1")
    assert change(None) is Change.RESTART
    assert change(now) is Change.UPDATE
    assert change(now, version="4.1") is Change.KEEP
    assert change(now, job="b", version="4.1") is Change.UPDATE, "the same number in another job is another version"
    assert change(now, job="b", shape="t") is Change.RESTART


def test_another_job_may_need_the_engine_started_in_another_way() -> None:
    now = Loaded(job="a", flags=Flags("float32"), shape="s", version="4.1")
    assert change(now, flags=Flags("bfloat16")) is Change.RESTART
    assert change(now, flags=Flags("float32", deterministic=True)) is Change.RESTART
    assert change(now, flags=Flags("float32", context_length=64)) is Change.RESTART


def test_two_folders_have_one_shape_when_tensors_and_tokenizer_agree() -> None:
    assert shape_of(CONFIG, "t") == shape_of({**CONFIG, "transformers_version": "5.0", "_name": "x"}, "t")
    assert shape_of(CONFIG, "t") != shape_of({**CONFIG, "hidden_size": 64}, "t")
    assert shape_of(CONFIG, "t") != shape_of(CONFIG, "u")


def test_each_job_gets_its_turn() -> None:
    assert in_turn(["c", "a", "b"], "a") == ["b", "c", "a"]
    assert in_turn(["c", "a", "b"], "c") == ["a", "b", "c"]
    assert in_turn(["b", "a"], "") == ["a", "b"]
    assert in_turn([], "a") == []


def test_the_first_with_work_is_chosen_and_else_the_first_at_all() -> None:
    assert choose([Offer("a", 0), Offer("b", 3), Offer("c", 9)]) == "b"
    assert choose([Offer("a", 0), Offer("b", 0)]) == "a"
    assert choose([]) is None


def leaving(stayed: float, idle: float, *, switch: float = 0.1, waiting: int = 1) -> bool:
    return leaves(stayed=stayed, idle=idle, quantum=10.0, switch=switch, offers=[Offer("b", waiting)])


def test_a_worker_leaves_after_its_quantum_or_when_it_has_had_nothing_for_a_while() -> None:
    assert leaving(stayed=10.0, idle=0.0)
    assert leaving(stayed=3.0, idle=1.5)
    assert not leaving(stayed=9.0, idle=0.5)


def test_it_stays_where_no_other_job_has_work() -> None:
    assert not leaving(stayed=100.0, idle=100.0, waiting=0)
    assert not leaves(stayed=100.0, idle=100.0, quantum=10.0, switch=0.1, offers=[])


def test_slow_switches_make_long_stays() -> None:
    assert not leaving(stayed=39.0, idle=0.0, switch=10.0)
    assert leaving(stayed=41.0, idle=0.0, switch=10.0)
    assert not leaving(stayed=8.0, idle=4.0, switch=10.0)
    assert leaving(stayed=8.0, idle=5.5, switch=10.0)


def test_back_off_doubles_up_to_half_a_minute_and_forgets_after_a_good_minute() -> None:
    backoff = Backoff()
    assert [backoff.failed(now) for now in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.failed(100) == 0.5
