import numpy as np
import pytest

from services.trainer.advantage import advantages

YES = [True] * 8


def test_the_mean_of_a_group_is_taken_off_and_its_deviation_divides():
    result = advantages([0, 0, 0, 0], [1.0, 0.0, 0.0, 0.0], YES[:4], "group_std")
    np.testing.assert_allclose(result, np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(3 / 16), rtol=1e-12)


def test_group_mean_does_not_divide():
    np.testing.assert_allclose(advantages([7, 7], [3.0, 1.0], YES[:2], "group_mean"), [1.0, -1.0])


@pytest.mark.parametrize("kind", ["group_std", "group_mean"])
def test_a_group_with_one_reward_throughout_teaches_nothing(kind):
    assert advantages([0, 0, 0], [0.1 + 0.2, 0.3, 0.3], YES[:3], kind).tolist() == [0.0, 0.0, 0.0]
    assert advantages([0], [5.0], YES[:1], kind).tolist() == [0.0]


def test_groups_are_joined_by_number_in_any_order_and_size():
    groups, rewards = [3, 1, 3, 1, 1, 2], [1.0, 0.0, 0.0, 2.0, 4.0, 9.0]
    mixed = advantages(groups, rewards, YES[:6], "group_std")
    order = np.argsort(groups, kind="stable")
    apart = advantages([groups[i] for i in order], [rewards[i] for i in order], YES[:6], "group_std")
    np.testing.assert_allclose(mixed[order], apart)
    np.testing.assert_allclose(mixed[[0, 2]], [1.0, -1.0])
    assert mixed[5] == 0.0


def test_an_ungraded_sample_moves_nobodys_mean():
    with_it = advantages([0, 0, 0], [1.0, 0.0, 100.0], [True, True, False], "group_std")
    np.testing.assert_allclose(with_it, [1.0, -1.0, 0.0])


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="median"):
        advantages([0], [1.0], [True], "median")
