"""The slots' autoreset equals Gymnasium's own, checked against SyncVectorEnv on the same environments, action by action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from wmrl_gym.factored import Step
from wmrl_gym.slots import SlotVectorEnv


class Countdown(gym.Env[Any, Any]):
    """Ends after a number of steps that it draws at reset: terminated on even ones, truncated on odd ones."""

    def __init__(self, *, nested: bool) -> None:
        counter = Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = Dict({"left": counter, "kind": Discrete(9)}) if nested else counter
        self.action_space = MultiDiscrete([3, 4]) if nested else Discrete(3)
        self.nested = nested

    def _observe(self) -> Any:
        counter = np.array([self.left, self.draw], dtype=np.float32)
        return {"left": counter, "kind": np.int64(self.start)} if self.nested else counter

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start = self.left = int(self.np_random.integers(1, 6))
        self.draw = self.np_random.random()
        return self._observe(), {"fresh": 1.5, "begun": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over = self.left == 0
        info = {"act": int(np.sum(action)), "fresh": 0.5, "name": f"n{self.left}"}
        return self._observe(), float(np.sum(action)), over and self.start % 2 == 0, over and self.start % 2 == 1, info


class CountdownSlots(SlotVectorEnv):
    """The same environments, stepped in subsets; remembers which slots it was asked to step."""

    def __init__(self, num_envs: int, *, nested: bool, autoreset_mode: AutoresetMode | str = "NextStep") -> None:
        self.envs = [Countdown(nested=nested) for _ in range(num_envs)]
        first = Countdown(nested=nested)
        super().__init__(num_envs, first.observation_space, action_space=first.action_space, autoreset_mode=autoreset_mode)
        self.stepped: list[list[int]] = []
        self.were_reset: list[list[int]] = []

    def _batch(self, observations: list[Any]) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, n=len(observations))
        return concatenate(self.single_observation_space, observations, empty)

    def _reset_slots(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        self.were_reset.append(slots.tolist())
        pairs = [self.envs[i].reset(seed=seed, options=options) for i, seed in zip(slots, seeds, strict=True)]
        return self._batch([obs for obs, _ in pairs]), {k: np.array([info[k] for _, info in pairs]) for k in pairs[0][1]}

    def _step_slots(self, slots: NDArray[np.int64], actions: Any) -> Step:
        self.stepped.append(slots.tolist())
        batched = gym.vector.utils.batch_space(self.single_action_space, len(slots))
        steps = [self.envs[i].step(action) for i, action in zip(slots, iterate(batched, actions), strict=True)]
        columns = list(zip(*steps, strict=True))
        info = {k: np.array([row[k] for row in columns[4]]) for k in columns[4][0]}
        due = np.ones(len(slots), bool)
        return Step(self._batch(list(columns[0])), *(np.array(column) for column in columns[1:4]), due, due, info)


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=where)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_every_step_equals_gymnasium_sync_vector_env(mode: AutoresetMode, nested: bool) -> None:
    ours = CountdownSlots(5, nested=nested, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: Countdown(nested=nested) for _ in range(5)], autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    for a, b in zip(ours.reset(seed=3), theirs.reset(seed=3), strict=True):
        assert_same(a, b, "reset")
    ours.action_space.seed(0)
    ended = 0
    for t in range(40):
        action = ours.action_space.sample()
        mine, gyms = ours.step(action), theirs.step(action)
        for part, (a, b) in enumerate(zip(mine, gyms, strict=True)):
            assert_same(a, b, f"step {t} part {part}")
        assert ours.observation_space.contains(mine[0])
        ended += int((mine[2] | mine[3]).sum())
    assert ended > 20


def test_next_step_never_steps_a_slot_that_is_being_reset_and_never_resets_its_neighbours() -> None:
    envs = CountdownSlots(4, nested=False)
    envs.reset(seed=0)
    for _ in range(30):
        pending = np.flatnonzero(envs.pending_reset).tolist()
        envs.stepped, envs.were_reset = [], []
        _, reward, terminated, truncated, _ = envs.step(np.full(4, 2))
        assert [slot for batch in envs.were_reset for slot in batch] == pending
        assert [slot for batch in envs.stepped for slot in batch] == [s for s in range(4) if s not in pending]
        assert not reward[pending].any()
        assert not (terminated | truncated)[pending].any()


def test_disabled_mode_refuses_an_ended_slot_until_its_mask_is_reset() -> None:
    envs = CountdownSlots(3, nested=True, autoreset_mode="Disabled")
    first, _ = envs.reset(seed=[4, 5, 6])
    while not envs.pending_reset.any():
        before, *_ = envs.step(np.zeros((3, 2), dtype=np.int64))
    mask = envs.pending_reset
    with pytest.raises(gym.error.ResetNeeded, match="have ended"):
        envs.step(np.zeros((3, 2), dtype=np.int64))
    options = {"reset_mask": mask, "other": 1}
    after, infos = envs.reset(options=options)
    assert options["reset_mask"] is mask
    assert infos["_begun"].tolist() == mask.tolist()
    np.testing.assert_array_equal(after["left"][~mask], before["left"][~mask])
    assert (after["left"][mask, 0] > 0).all()
    assert len(first["kind"]) == 3
    envs.step(np.zeros((3, 2), dtype=np.int64))


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([True, False], TypeError, "boolean array, got list"),
        (np.ones(2, dtype=int), TypeError, "array of int64"),
        (np.ones(3, dtype=bool), ValueError, r"shape \(2,\), got \(3,\)"),
        (np.zeros(2, dtype=bool), ValueError, "at least one slot"),
    ],
)
def test_a_bad_reset_mask_says_what_is_expected(mask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CountdownSlots(2, nested=False).reset(options={"reset_mask": mask})


def test_bad_use_is_refused_with_expected_and_actual() -> None:
    envs = CountdownSlots(2, nested=False)
    with pytest.raises(gym.error.ResetNeeded, match=r"\[0, 1\]"):
        envs.step(np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="2 slots, got 3"):
        envs.reset(seed=[1, 2, 3])
    envs.reset(seed=1)
    with pytest.raises(ValueError, match="2 slots, got 3"):
        envs.step(np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        CountdownSlots(0, nested=False)


def test_returned_observations_are_copies() -> None:
    envs = CountdownSlots(2, nested=False)
    first, _ = envs.reset(seed=1)
    kept = first.copy()
    second, *_ = envs.step(np.zeros(2, dtype=np.int64))
    np.testing.assert_array_equal(first, kept)
    second[:] = -1
    third, *_ = envs.step(np.zeros(2, dtype=np.int64))
    assert (third != -1).all()


def test_final_obs_is_not_overwritten_by_later_steps() -> None:
    envs = CountdownSlots(1, nested=False, autoreset_mode="SameStep")
    envs.reset(seed=2)
    infos: dict[str, Any] = {}
    while "final_obs" not in infos:
        *_, infos = envs.step(np.array([1]))
    last = infos["final_obs"][0]
    assert last[0] == 0
    envs.step(np.array([1]))
    assert last[0] == 0
    assert infos["final_info"]["name"][0] == "n0"
    assert "name" not in infos
