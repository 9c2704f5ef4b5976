"""Environments with a world model behave as every other Gymnasium environment does."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics, TransformReward

import wmrl_gym  # noqa: F401 - registers the ids
from tests.bandit import Bandit
from tests.wrappers.nothing import Nothing
from wmrl_gym.engine.info import KEYS
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.envs.factored_env import FactoredEnv, FactoredVectorEnv
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel, WorldModel, WorldModelError
from wmrl_gym.wrappers import (
    InverseVarianceDenoising,
    OnlineDebiasing,
    ResidualCorrection,
    WorldModelWrapper,
    corrected,
    world_model_parts,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv
from wmrl_gym.wrappers.vector import corrected as corrected_vector

PRESETS = ("recommended", "contextual", "smooth", "adaptive", "paper", "debias", "denoise")


class Goal(gym.Env[Any, Any]):
    """Five steps; says whether it succeeded, which actions are legal, and breaks when it is told to."""

    observation_space = gym.spaces.Box(-1, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, breaks_at: int = 0) -> None:
        self.breaks_at = breaks_at
        self.number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = 0
        return np.zeros(1, np.float32), {"is_success": False}

    def action_masks(self) -> Any:
        return np.array([self.x > 0, self.x < 9, True])

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action], f"illegal action {action} at {self.x}"
        self.x += 1
        self.number += 1
        seen = np.full(1, np.nan if self.number == self.breaks_at else self.x, np.float32)
        return seen, 1.0, self.x >= 5, False, {"is_success": self.x >= 5, "where": {"x": self.x}}


class Told(Nothing):
    """Predicts what it is told of masks and of the environment's own info."""

    def action_masks(self, state: Any) -> Any:
        return np.tile([False, True, True], (len(state), 1))

    def step(self, state: Any, action: Any, rng: Any) -> Any:
        after, prediction = super().step(state, action, rng)
        prediction.info["is_success"] = np.ones(len(state), bool)
        return after, prediction


class Plain(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


def cart_pole(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **options)


def wrapped() -> dict[str, Callable[[], gym.Env[Any, Any]]]:
    """Every wrapper of one environment."""
    made: dict[str, Callable[[], gym.Env[Any, Any]]] = {
        "imagined": lambda: WorldModelWrapper(cart_pole(), Nothing(), anchors=0.0, seed=0),
        "background": lambda: WorldModelWrapper(cart_pole(), Nothing(), anchors=1.0, anchor_mode="background", seed=0),
        "unfitted": lambda: corrected(cart_pole(), EnsembleDynamics(hidden=(8,)), seed=0),
        "weights": lambda: InverseVarianceDenoising(WorldModelWrapper(cart_pole(), Nothing(), seed=0), "gradient"),
        "guard": lambda: OnlineDebiasing(WorldModelWrapper(cart_pole(), Nothing(), seed=0), pessimism=1.0),
        "residual": lambda: ResidualCorrection(OnlineDebiasing(WorldModelWrapper(cart_pole(), Nothing(), seed=0)), 0.3),
        "wrapper between": lambda: OnlineDebiasing(TransformReward(WorldModelWrapper(cart_pole(), Nothing(), seed=0), float)),
    }
    return made | {name: lambda name=name: corrected(cart_pole(), Nothing(), preset=name, seed=0) for name in PRESETS}


@pytest.mark.parametrize("name", wrapped())
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
@pytest.mark.filterwarnings("ignore:.*A Box observation space (minimum|maximum) value is:UserWarning")
def test_gymnasiums_checker_accepts_a_wrapped_environment(name: str) -> None:
    env = wrapped()[name]()
    check_env(env, skip_render_check=True)  # drawing CartPole takes another library
    env.close()


@pytest.mark.parametrize("name", wrapped())
def test_a_specification_makes_a_wrapped_environment_again(name: str) -> None:
    env = wrapped()[name]()
    again = gym.make(env.spec)  # type: ignore[arg-type]
    kinds = []
    for layer in (env, again):
        kinds.append([])
        while isinstance(layer, gym.Wrapper):
            kinds[-1].append(type(layer).__name__)
            layer = layer.env
    assert kinds[0] == kinds[1]
    parts, others = world_model_parts(env), world_model_parts(again)
    assert parts is not None
    assert others is not None
    assert others.model is parts.model, "the weights are shared, and not copied"
    assert others.engine.options == parts.engine.options
    np.testing.assert_array_equal(env.reset(seed=3)[0], again.reset(seed=3)[0])
    env.close()
    again.close()


@pytest.mark.parametrize("name", wrapped())
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"])
def test_a_fresh_wrapped_environment_can_be_copied(name: str, copied: Any) -> None:
    env = wrapped()[name]()
    other = copied(env)
    for each in (env, other):
        each.reset(seed=1)
        each.action_space.seed(1)
    for _ in range(5):
        left, right = env.step(0), other.step(0)
        np.testing.assert_equal(left, right)
    env.close()
    other.close()


def test_a_fresh_vector_environment_can_be_copied() -> None:
    for envs in (
        corrected_vector("CartPole-v1", Nothing(), num_envs=3, seed=0),
        FactoredVectorEnv(Bandit(), 3),
    ):
        if isinstance(envs, FactoredVectorEnv):
            envs.factored._lock = None  # type: ignore[attr-defined]
        other = copy.deepcopy(envs)
        np.testing.assert_equal(envs.reset(seed=1), other.reset(seed=1))
        envs.close()
        other.close()


def test_numbers_that_nobody_knows_are_absent_and_flags_always_there() -> None:
    env = corrected(cart_pole(), Nothing(), anchors=0.0, seed=0)
    _, info = env.reset(seed=0)
    always = {name for name, key in KEYS.items() if key.always}
    assert always <= set(info)
    assert not set(info) & {"wm_reward", "wm_reward_std", "real_reward", "calibrated_reward", "residual_var"}
    *_, info = env.step(0)
    assert set(info) - always == {"wm_reward", "calibrated_reward", "residual_var"}
    for name in always:
        assert isinstance(info[name], KEYS[name].dtype), name
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_environments_mask_what_nobody_knows(mode: AutoresetMode) -> None:
    envs = corrected_vector(Goal, Nothing(), num_envs=4, anchors=0.5, autoreset_mode=mode, seed=0, warmup=0)
    _, infos = envs.reset(seed=0)
    some = False
    for _ in range(12):
        for place in (infos, infos.get("final_info", {})):
            for name in KEYS.keys() & place.keys():
                values, mask = place[name], place[f"_{name}"]
                assert values.dtype == np.dtype(KEYS[name].dtype), name
                if KEYS[name].always:
                    assert mask.all() or place is not infos
                else:
                    np.testing.assert_array_equal(mask, np.isfinite(values), name)
                    some |= bool(mask.any() and not mask.all())
        *_, infos = envs.step(np.full(4, 2))
    assert some
    envs.close()


def test_the_environments_own_info_is_there_in_real_steps_and_never_old() -> None:
    env = WorldModelWrapper(Goal(), Nothing(), anchors=0.5, seed=0)
    kinds = set()
    for episode in range(12):
        _, info = env.reset(seed=0 if episode == 0 else None)
        assert info["is_success"] is False  # every start is a real one
        for step in range(5):
            *_, info = env.step(2)
            kinds.add(info["anchor"])
            if info["anchor"]:
                assert info["is_success"] is (step == 4)
                assert info["where"] == {"x": step + 1}
            else:
                assert "is_success" not in info
                assert "where" not in info
    assert kinds == {True, False}


def test_imagined_info_is_what_the_model_predicts_else_what_the_user_gives() -> None:
    given = {"is_success": False, "where": {"x": -1}}
    user = WorldModelWrapper(Goal(), Nothing(), anchors=0.0, imagined_info=given)
    user.reset(seed=0)
    first, second = user.step(2)[4], user.step(2)[4]
    assert first["is_success"] is False
    assert first["where"] == {"x": -1}
    assert first["where"] is not second["where"]
    model = WorldModelWrapper(Goal(), Told(), anchors=0.0, imagined_info=given)
    model.reset(seed=0)
    info = model.step(2)[4]
    assert info["is_success"] is True
    assert info["where"] == {"x": -1}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_environments_own_info_reaches_a_vector_with_masks(mode: AutoresetMode) -> None:
    envs = WorldModelVectorEnv(Goal, Nothing(), num_envs=4, anchors=0.5, autoreset_mode=mode, seed=0)
    _, infos = envs.reset(seed=0)
    assert infos["_is_success"].all()
    seen = set()
    for _ in range(14):
        fresh = envs.pending_reset if mode is AutoresetMode.NEXT_STEP else np.zeros(4, bool)
        _, _, terminated, truncated, infos = envs.step(np.full(4, 2))
        over = terminated | truncated
        final = infos.get("final_info", {})
        anchor = np.where(over, final["anchor"], infos["anchor"]) if final else infos["anchor"]
        for slot in np.flatnonzero(~fresh):
            place = final if over[slot] and final else infos
            seen.add((bool(anchor[slot]), bool(over[slot])))
            told = bool(place.get("_is_success", np.zeros(4, bool))[slot])
            assert told == bool(anchor[slot])
            if told:
                assert bool(place["is_success"][slot]) == bool(over[slot])
    assert (True, True) in seen
    assert (False, False) in seen
    envs.close()


def test_statistics_recorded_below_the_world_model_reach_the_user() -> None:
    for below in (RecordEpisodeStatistics(Goal()), RecordEpisodeStatistics(FactoredEnv(Bandit(max_turns=2)))):
        model = (
            Nothing() if below.unwrapped.spec is None and isinstance(below.unwrapped, Goal) else OutcomeModel(8, encoder="none")
        )
        env = WorldModelWrapper(below, model, anchors=1.0)
        env.reset(seed=0)
        over, paid, steps = False, 0.0, 0
        while not over:
            _, reward, terminated, truncated, info = env.step(2 if isinstance(below.unwrapped, Goal) else np.array([1, 2]))
            over, paid, steps = terminated or truncated, paid + reward, steps + 1
        assert info["episode"]["r"] == pytest.approx(paid)
        assert info["episode"]["l"] == steps
        assert list(below.length_queue) == [steps]


def test_statistics_recorded_below_reach_a_vector_too() -> None:
    def make() -> gym.Env[Any, Any]:
        return RecordEpisodeStatistics(FactoredEnv(Bandit(max_turns=2)))

    envs = WorldModelVectorEnv(
        make, OutcomeModel(8, encoder="none"), num_envs=3, anchors=1.0, warmup=0, autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs.reset(seed=0)
    actions = np.array([[1, 2], [2, 1], [1, 1]])
    envs.step(actions)
    _, reward, _, _, infos = envs.step(actions)
    episode = infos["final_info"]["episode"]
    np.testing.assert_allclose(episode["r"], reward)
    np.testing.assert_array_equal(episode["l"], [2, 2, 2])
    envs.close()


def test_masks_are_those_of_the_state_or_an_error() -> None:
    real = WorldModelWrapper(Goal(), Nothing(), anchors=1.0)
    real.reset(seed=0)
    np.testing.assert_array_equal(real.action_masks(), [False, True, True])
    real.step(2)
    np.testing.assert_array_equal(real.get_wrapper_attr("action_masks")(), [True, True, True])
    imagined = OnlineDebiasing(WorldModelWrapper(Goal(), Nothing(), anchors=0.0))
    imagined.reset(seed=0)
    np.testing.assert_array_equal(imagined.action_masks(), [False, True, True])  # its start is a real one
    imagined.step(2)
    with pytest.raises(WorldModelError, match="Nothing does not predict which actions are legal"):
        imagined.action_masks()
    told = WorldModelWrapper(Goal(), Told(), anchors=0.0)
    told.reset(seed=0)
    told.step(2)
    np.testing.assert_array_equal(told.action_masks(), [False, True, True])
    assert not hasattr(WorldModelWrapper(cart_pole(), Nothing()), "action_masks")


def test_warm_up_and_background_anchors_act_inside_the_mask() -> None:
    model = EnsembleDynamics(hidden=(8,), min_transitions=40, max_gradient_steps=5)
    envs = WorldModelVectorEnv(Goal, model, num_envs=2, anchors=1.0, anchor_mode="background", seed=0)
    envs.reset(seed=0)
    assert model.fitted
    for _ in range(8):
        envs.step(np.zeros(2, int))  # illegal at the real start
    assert envs.engine.wait(60)
    assert envs.engine.unknown == 0
    envs.close()


def test_masks_of_many_environments_are_rows() -> None:
    envs = WorldModelVectorEnv(Goal, Nothing(), num_envs=3, anchors=1.0, seed=0)
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.action_masks(), np.tile([False, True, True], (3, 1)))
    envs.step(np.full(3, 2))
    np.testing.assert_array_equal(envs.action_masks(), np.ones((3, 3), bool))
    for _ in range(4):
        envs.step(np.full(3, 2))
    assert envs.pending_reset.all()
    np.testing.assert_array_equal(envs.action_masks(), np.ones((3, 3), bool))
    envs.close()


def test_a_seed_is_the_seed_that_was_given() -> None:
    for env in (WorldModelWrapper(cart_pole(), Nothing()), corrected(FactoredEnv(Bandit()), OutcomeModel(8, encoder="none"))):
        env.reset(seed=42)
        env.reset()
        assert env.np_random_seed == 42
        assert env.unwrapped._np_random is not None
    assert FactoredEnv(Bandit())._np_random is not None
    for envs in (WorldModelVectorEnv("CartPole-v1", Nothing(), num_envs=2), FactoredVectorEnv(Bandit(), 2)):
        envs.reset(seed=42)
        envs.reset()
        assert envs.np_random_seed == 42
        envs.reset(seed=[3, 4])
        assert envs.np_random_seed == (3, 4)
        envs.close()


def test_pair_numbers_begin_again_with_the_seed() -> None:
    env = WorldModelWrapper(cart_pole(), Nothing(), anchors=1.0)
    for _ in range(2):
        env.reset(seed=5)
        assert [env.step(0)[4]["pair"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: corrected(cart_pole(), Nothing()),
        lambda: FactoredEnv(Bandit()),
        lambda: corrected_vector("CartPole-v1", Nothing(), num_envs=2),
        lambda: FactoredVectorEnv(Bandit(), 2),
    ],
    ids=["single", "factored", "vector", "factored vector"],
)
def test_a_closed_environment_stays_closed_and_says_so(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError, match=r"reset\(\) of an environment that was closed"):
        env.reset(seed=0)
    with pytest.raises(ClosedEnvironmentError, match=r"step\(\) of an environment that was closed"):
        env.step(env.action_space.sample())


def test_a_wrapper_that_cannot_be_made_again_is_refused_where_a_second_instance_is_needed() -> None:
    below = Plain(cart_pole())
    with pytest.raises(ValueError, match="Plain below does not record its arguments"):
        WorldModelWrapper(below, Nothing(), anchor_mode="background")
    with pytest.raises(ValueError, match="second instance"):
        OnlineDebiasing(WorldModelWrapper(below, Nothing()), pessimism=1.0)
    WorldModelWrapper(below, Nothing()).reset(seed=0)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (np.array([np.nan], np.float32), "action must be finite"),
        (np.zeros(2, np.float32), r"action must be in Box.*, got float32 of shape \(2,\)"),
        ("left", "action must be in Box"),
    ],
)
def test_an_action_that_is_none_is_named_before_the_model_sees_it(action: Any, what: str) -> None:
    env = WorldModelWrapper(gym.make("Pendulum-v1"), Nothing(), anchors=0.0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=what):
        env.step(action)
    discrete = WorldModelWrapper(cart_pole(), Nothing(), anchors=0.0)
    discrete.reset(seed=0)
    with pytest.raises(ValueError, match="action must be in Discrete"):
        discrete.step(7)
    envs = WorldModelVectorEnv("Pendulum-v1", Nothing(), num_envs=2, anchors=0.0)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="actions must be"):
        envs.step(np.full((2, 1), np.nan, np.float32))
    envs.close()


def test_a_model_that_is_none_or_bound_to_other_spaces_is_named() -> None:
    with pytest.raises(TypeError, match="model must be a WorldModel, got PPO"):
        WorldModelWrapper(cart_pole(), type("PPO", (), {})())
    with pytest.raises(TypeError, match="the class Nothing: call it first"):
        WorldModelWrapper(cart_pole(), Nothing)  # type: ignore[arg-type]
    model = EnsembleDynamics(hidden=(8,))
    WorldModelWrapper(cart_pole(), model)
    with pytest.raises(ValueError, match="model is bound to an environment whose observation_space"):
        WorldModelWrapper(gym.make("Pendulum-v1"), model)
    with pytest.raises(TypeError, match="WorldModelWrapper has no argument 'anchor'; its options are anchors"):
        WorldModelWrapper(cart_pole(), Nothing(), anchor=0.1)


def test_a_step_whose_observation_is_not_finite_ends_the_episode_as_unknown() -> None:
    env = WorldModelWrapper(Goal(breaks_at=3), Nothing(), anchors=1.0)
    env.reset(seed=0)
    before = [env.step(2) for _ in range(2)][-1][0]
    observation, reward, terminated, truncated, info = env.step(2)
    np.testing.assert_array_equal(observation, before)
    assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, True, False)
    assert "real_reward" not in info
    assert (len(env.engine.buffer), len(env.engine.stream)) == (2, 2)
    assert (env.stats()["cost/skipped"], env.stats()["anchors/unknown"]) == (1, 1)
    env.reset()
    assert env.step(2)[4]["reward_valid"]


def test_a_start_that_is_not_finite_is_left_out() -> None:
    class Broken(Goal):
        resets = 0

        def reset(self, **options: Any) -> Any:
            seen, info = super().reset(**options)
            self.resets += 1
            return (seen * np.nan if self.resets == 1 else seen), info

    env = WorldModelWrapper(Broken(), Nothing(), anchors=1.0)
    assert np.isfinite(env.reset(seed=0)[0]).all()
    assert env.stats()["cost/skipped"] == 1


def test_a_run_that_may_never_imagine_says_so_at_once() -> None:
    class Endless(Goal):
        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 0.0, False, False, {}

    env = WorldModelWrapper(Endless(), EnsembleDynamics(hidden=(8,)), anchors=0.0, max_model_steps=10)
    with pytest.warns(UserWarning, match="no time limit"):
        env.reset(seed=0)
    anchored = WorldModelWrapper(Endless(), Nothing(), anchors=1.0)
    anchored.reset(seed=0)
    for _ in range(999):
        anchored.step(2)
    with pytest.warns(UserWarning, match="a real episode has gone on for 1,000 steps"):
        anchored.step(2)
    limited = WorldModelWrapper(Endless(), EnsembleDynamics(hidden=(8,)), anchors=0.0, max_model_steps=10, max_episode_steps=3)
    limited.reset(seed=0)
    assert [limited.step(2)[3] for _ in range(3)] == [False, False, True]


def test_a_trainer_reads_engine_model_and_corrections_of_any_stack() -> None:
    env: Any = TransformReward(corrected(cart_pole(), Nothing(), preset="recommended"), float)
    parts = world_model_parts(env)
    assert parts is not None
    assert [type(each).__name__ for each in parts.corrections] == ["Debiasing", "Residual"]
    assert (parts.debiasing, parts.residual, parts.denoising) == (*parts.corrections, None)
    assert isinstance(parts.model, WorldModel)
    assert parts.engine.model is parts.model
    assert world_model_parts(cart_pole()) is None


def test_the_documented_table_of_keys_is_the_one_that_holds() -> None:
    told = (Path(__file__).parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {key.dtype.__name__} | {'always' if key.always else 'where it is known'} | {key.meaning} |"
        for name, key in KEYS.items()
    ]
    table = [line for line in told.splitlines() if line.startswith("| `")]
    assert table[: len(rows)] == rows


@pytest.mark.parametrize("cls", [WorldModelWrapper, WorldModelVectorEnv])
def test_every_option_stands_in_signature_and_docstring(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters
    for each in dataclasses.fields(EngineOptions):
        if each.metadata["internal"]:
            assert each.name not in parameters
            continue
        assert parameters[each.name].default == each.default
        assert f"{each.name}: {each.metadata['doc']}" in cls.__doc__


def test_what_is_public_is_reachable_after_one_import() -> None:
    code = (
        "import wmrl_gym\n"
        "assert {'factored', 'wrappers', 'world_models'} <= set(dir(wmrl_gym))\n"
        "assert 'keep_old_names' not in dir(wmrl_gym)\n"
        "print(wmrl_gym.wrappers.vector.WorldModelVectorEnv.__name__, wmrl_gym.factored.Factored.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["WorldModelVectorEnv", "Factored"]


def test_readme_docs_and_examples_import_public_names_only() -> None:
    root = Path(__file__).parents[2]
    sources = [*root.glob("examples/*.py"), root / "README.md", *root.glob("docs/*.md")]
    found = set()
    for source in sources:
        for package, names in re.findall(
            r"^\s*from (wmrl_gym[\w.]*) import ([\w, ]+)$", source.read_text(encoding="utf-8"), re.M
        ):
            module = importlib.import_module(package)
            for name in re.findall(r"(\w+)(?: as \w+)?(?:,|$)", names):
                found.add((package, name))
                public = getattr(module, "__all__", None) or dir(module)
                assert name in public, f"{source.name}: {package} does not show {name}"
    assert len(found) > 10


def test_a_run_that_another_version_saved_is_refused_before_anything_changes() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Nothing(), anchors=0.0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    state = env.state_dict()
    old = {**state, "engine": {name: value for name, value in state["engine"].items() if name != "format"}}
    with pytest.raises(ValueError, match="this state of a run has the format 1, expected 2"):
        env.load_state_dict(old)
    assert env.step(0)[4]["depth"] == 4
    env.load_state_dict(state)
    assert env.step(0)[4]["depth"] == 4
