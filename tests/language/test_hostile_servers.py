"""A chat server may answer as it likes: no step raises, none waits for long, and what is good is still understood."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import fuzz_servers
from benchmarks.fuzz_servers import HOSTILITIES, Answer, Server, http
from tests.language.asking import asking, bound, reply, step
from tests.language.chat_server import serving
from wmrl_gym.envs.autoresearch import AutoResearchText


@pytest.mark.parametrize("kind", [name for name in HOSTILITIES if name != "slow"])
def test_no_reply_of_a_kind_leads_out_of_step(kind: str, text: AutoResearchText) -> None:
    rng = np.random.default_rng(3)

    def answer(handler: Any, body: dict[str, Any]) -> None:
        drawn: Answer = HOSTILITIES[kind][0](body, rng)
        handler.close_connection = True
        for piece in drawn.pieces:
            handler.wfile.write(piece)

    with serving(answer) as server:
        model = bound(asking(server, timeout_s=5.0, logprobs=5), text, cache=0)
        for number in range(12):
            prediction = step(model, text, [reply(f"x = {number}\n")])
            assert prediction.observation in fuzz_servers_space(text)
            known = prediction.reward_valid
            assert ((prediction.reward >= 0) & (prediction.reward <= 1))[known].all()
            assert known.all() or kind != "good"
    assert model.asked.attempts == 12


def fuzz_servers_space(text: AutoResearchText) -> Any:
    """One observation's space, as a batch."""
    from gymnasium.vector.utils import batch_space

    return batch_space(text.observation_space, 1)


def test_a_mix_of_all_of_them_leaves_two_environments_stepping(task: Path) -> None:
    report = fuzz_servers.fuzz_servers(60, seed=11, task=task)
    assert report["exceptions"] == {}
    assert report["over_their_limit"] == 0
    assert report["count"] >= 60
    assert report["verdicts"]["attempts predicted"] > 0
    assert report["verdicts"]["attempts unknown"] > 0


def test_the_same_seed_draws_the_same_hostilities() -> None:
    body = {"response_format": {"json_schema": {"schema": {"properties": {"status": {"type": "string", "enum": ["valid"]}}}}}}
    drawn = []
    for _ in range(2):
        server = Server(7)
        drawn.append([server.next_answer(body) for _ in range(40)])
        assert len(server.kinds) > 5
        server.server_close()
    assert drawn[0] == drawn[1]


def test_a_server_that_says_when_to_come_back_is_not_waited_for_beyond_the_time_out(text: AutoResearchText) -> None:
    for told in ("inf", "nan", "9" * 400, "-1", "Wed, 21 Oct 2015 07:28:00 GMT"):
        seen = Counter[str]()

        def answer(handler: Any, body: dict[str, Any], told: str = told, seen: Counter[str] = seen) -> None:
            seen["asked"] += 1
            handler.close_connection = True
            handler.wfile.write(http(b"later", f"Retry-After: {told}", status=429))

        with serving(answer) as server:
            model = bound(asking(server, retries=1, backoff_s=0.0, timeout_s=0.5), text)
            assert not step(model, text, [reply("x = 1\n")]).reward_valid.any()
        assert seen["asked"] == 2
