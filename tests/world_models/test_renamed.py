"""World models written for version 0.1 go on working, with a warning that gives the new names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wmrl_gym.world_models import WorldModel


def a_model_of_01() -> type[WorldModel]:
    with pytest.warns(DeprecationWarning, match="is called") as told:

        class Old(WorldModel):
            learns_aside = True

            def begin(self, observation: Any, info: Any, rng: Any) -> Any: ...

            def step(self, state: Any, action: Any, rng: Any) -> Any: ...

            def digest(self, transitions: Any, rng: Any) -> Any:
                return transitions * 2

            def adopt(self, digested: Any) -> dict[str, float]:
                return {"wm/doubled": digested}

    said = [str(each.message) for each in told]
    assert said == [
        "Old.learns_aside is called learns_in_background now",
        "Old.digest is called compute_update now",
        "Old.adopt is called apply_update now",
    ]
    return Old


def test_members_under_their_old_names_serve_under_the_new_ones() -> None:
    model = a_model_of_01()()
    assert model.learns_in_background is True
    assert model.apply_update(model.compute_update(21, np.random.default_rng(0))) == {"wm/doubled": 42}  # type: ignore[arg-type]


def test_a_model_of_today_is_asked_by_the_old_names_too() -> None:
    class New(WorldModel):
        learns_in_background = True

        def begin(self, observation: Any, info: Any, rng: Any) -> Any: ...

        def step(self, state: Any, action: Any, rng: Any) -> Any: ...

    with pytest.warns(DeprecationWarning, match=r"New\.learns_aside is called learns_in_background now"):
        assert New().learns_aside is True
    with pytest.raises(AttributeError, match="'New' object has no attribute 'nonsense'"):
        New().nonsense  # noqa: B018


def test_an_outcome_model_of_01_need_not_be_abstract() -> None:
    from wmrl_gym.world_models.attempts import AttemptModel

    with pytest.warns(DeprecationWarning, match="foresee is called predict_outcomes"):

        class Old(AttemptModel):
            def foresee(self, attempt: Any, context: Any, **options: Any) -> Any:
                return attempt

    assert Old().predict_outcomes(3, np.zeros(1), seed=np.zeros(1), rng=np.random.default_rng()) == 3
