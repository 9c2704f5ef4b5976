"""A saved model that asks a language model is loaded with its back end, and measured by ``wmrl fidelity``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from tests.language.asking import answer_outcome, asking, bound, executed_as, reply
from tests.language.chat_server import ChatServer, Handler, serving
from wmrl_gym.cli import main
from wmrl_gym.data.demonstrations import Collection, EpisodeFolder, run_episode
from wmrl_gym.data.minari import write_minari
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.world_models import ChatClient, EnsembleDynamics, LLMWorldModel, LocalModel, WorldModelError, load_model

COPY = (
    "import os, shutil\nfound = os.environ['DATA_DIR'] + '/sample_submission.csv'\n"
    "shutil.copy(found, os.environ['SUBMISSION_PATH'])  # good {}\n"
)
FAIL = "x = {}\ny = {{}}['a']\n"
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def episodes(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six scripts that were really executed, and one that needs no execution, as a Minari data set."""
    root = tmp_path_factory.mktemp("episodes")
    env = gym.make("wmrl/AutoResearch-v0", task=str(task), max_turns=1)
    folder = EpisodeFolder(root / "kept", Collection("wmrl/AutoResearch-v0", {}, "scripted", 0, 30, {}))
    scripts = [COPY.format(1), FAIL.format(1), COPY.format(2), FAIL.format(2), FAIL.format(3), "print(", "print(1)\n"]
    for seed, script in enumerate(scripts):
        folder.add(run_episode(env, lambda env, observation, script=script: reply(script), seed=seed))
    written = write_minari(folder, env, root / "sets", dataset_id="wmrl/shift-v0")
    env.close()
    return written


@pytest.fixture
def saved(text: AutoResearchText, tmp_path: Path) -> Path:
    """A model with two executed examples whose server does not listen any more."""
    client = ChatClient(NOWHERE, "small", api_key="a-secret", retries=0, cooldown_s=0.0, timeout_s=20.0)
    model = bound(client, text, shots=2, design="holistic", cache=7)
    model.update(executed_as(text, {"a = 1": (4, 0.1), "b = 2": (6, 0.8)}), np.random.default_rng(0))
    model.save(tmp_path / "llm")
    return tmp_path / "llm"


def fidelity(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    status = main(["fidelity", *(str(each) for each in arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_it_is_loaded_with_its_settings_examples_and_back_end(saved: Path) -> None:
    model = load_model(saved)
    assert isinstance(model, LLMWorldModel)
    assert isinstance(model.backend, ChatClient)
    assert (model.backend.base_url, model.backend.model, model.backend.retries) == (NOWHERE, "small", 0)
    assert (model.shots, model.cache, model.executions) == (2, 7, 2)
    assert [example.code for _, example in model.shown] == ["a = 1\n", "b = 2\n"]


def test_another_back_end_takes_the_place_of_the_saved_one(saved: Path) -> None:
    moved = load_model(saved, backend="http://127.0.0.1:8/v1", backend_settings={"timeout_s": 3})
    assert isinstance(moved, LLMWorldModel)
    assert isinstance(moved.backend, ChatClient)
    assert (moved.backend.base_url, moved.backend.model, moved.backend.timeout_s) == ("http://127.0.0.1:8/v1", "small", 3)
    own = ChatClient(NOWHERE, "mine")
    given = load_model(saved, backend=own)
    assert isinstance(given, LLMWorldModel)
    assert given.backend is own


def test_no_secret_is_saved(text: AutoResearchText, tmp_path: Path) -> None:
    client = ChatClient("https://me:pass-word@example.org/v1", "small", api_key="a-secret-key")
    bound(client, text).save(tmp_path)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "example.org/v1" in written
    assert not [secret for secret in ("a-secret-key", "pass-word", "me:") if secret in written + repr(client)]


def test_weights_are_found_again_by_their_folder(weights: Path, text: AutoResearchText, tmp_path: Path) -> None:
    local = LocalModel.load(weights, device="cpu", batch_size=3, max_text_tokens=5)
    bound(local, text).save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert isinstance(model, LLMWorldModel)
    assert isinstance(model.backend, LocalModel)
    assert (model.backend.source, model.backend.batch_size, model.backend.max_text_tokens) == (str(weights), 3, 5)
    assert model.backend.max_prompt_tokens == local.max_prompt_tokens
    document = tmp_path / "model" / "llm_world_model.json"
    document.write_text(document.read_text().replace(str(weights), str(tmp_path / "gone")))
    with pytest.raises(WorldModelError, match=r"weights of the back end are not in .*gone any more"):
        load_model(tmp_path / "model")


def test_a_back_end_that_cannot_be_made_again_must_be_given(text: AutoResearchText, tmp_path: Path) -> None:
    class Own:
        knows_chances = False

        def ask(self, questions: Any) -> list[Any]:
            return [None for _ in questions]

    own = Own()
    bound(own, text).save(tmp_path)
    with pytest.raises(WorldModelError, match="the back end was not saved: give the address"):
        load_model(tmp_path)
    model = load_model(tmp_path, backend=own)
    assert isinstance(model, LLMWorldModel)
    assert model.backend is own


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:40], "is damaged"),
        (lambda text: text.replace('"format": 2', '"format": 9'), "expected LLMWorldModel of format 2"),
        (lambda text: text.replace('"examples"', '"exemples"'), "is damaged: KeyError"),
        (lambda text: text.replace('"holistic"', '"vague"'), "settings that no LLMWorldModel has: design must be"),
        (lambda text: text.replace('"kind": "server"', '"kind": "oracle"'), "of the kind 'server' or 'weights', got 'oracle'"),
        (lambda text: text.replace('"retries": 0', '"retries": -1'), "retries must be at least 0, got -1"),
        (lambda text: text.replace('"retries"', '"retires"'), "there is no back end with the settings"),
    ],
)
def test_a_damaged_checkpoint_is_said(damage: Any, message: str, saved: Path) -> None:
    path = saved / "llm_world_model.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(WorldModelError, match=message):
        load_model(saved)


def test_fidelity_prints_the_table_of_a_model_that_asks_a_server(
    episodes: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answer_outcome) as server:
        status, said, errors = fidelity(capsys, saved, episodes, "--backend", server.url, "--set", "concurrency=4")
    assert (status, errors) == (0, "")
    report = json.loads((saved / "fidelity.json").read_text())
    assert (report["model"], report["transitions"]) == ("LLMWorldModel", 7)
    assert (report["reward"]["n"], report["reward"]["n_unknown"]) == (6, 0)
    assert report["status"]["accuracy"] == pytest.approx(5 / 6), "the one that writes nothing is believed to be valid"
    assert report["status"]["error_type_accuracy"] == 1.0
    assert report["asked"] == {**report["asked"], "questions": 6, "answered": 6}
    assert all(words in said for words in ("LLMWorldModel on 7 real steps", "status accuracy", "6 questions about 6 attempts"))
    assert len(server.requests) == 6
    assert all("a = 1" in str(body["messages"]) for body in server.requests), "executed examples are shown"
    assert (saved / "fidelity.png").read_bytes().startswith(b"\x89PNG")


def test_fidelity_counts_what_a_failing_server_does_not_answer(
    episodes: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(handler: Handler, body: dict[str, Any]) -> None:
        if "x = " in body["messages"][-1]["content"]:
            handler.send(b"out of order", status=500)
        else:
            answer_outcome(handler, body)

    with serving(half) as server:
        status, said, _ = fidelity(capsys, saved, episodes, "--backend", server.url)
    assert status == 0
    report = json.loads((saved / "fidelity.json").read_text())
    assert (report["reward"]["n"], report["reward"]["n_unknown"], report["reward"]["unknown"]) == (3, 3, 0.5)
    assert "50.0%: unknown, and not scored" in said
    assert "3 not at all" in said
    assert "status 500: out of order" in said


def test_fidelity_of_a_server_that_is_down_scores_nothing_and_says_so(
    episodes: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, errors = fidelity(capsys, saved, episodes, "--out", saved / "report")
    assert status == 1
    assert errors == "wmrl fidelity: none of the 6 steps was answered\n"
    assert "100.0%: unknown, and not scored" in said
    assert "6 not at all; of 6 attempts nothing is known" in said
    assert "ChatClient('http://127.0.0.1:9/v1', 'small')" in said
    report = json.loads((saved / "report" / "fidelity.json").read_text())
    assert (report["reward"]["n"], report["reward"]["n_unknown"], report["reward"]["mae"]) == (0, 6, None)
    assert report["status"]["accuracy"] is report["calibration"] is None
    assert (saved / "report" / "fidelity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "nowhere/at/all"], "there is no back end with the settings"),
        (["--backend", "http://"], "base_url must be an address"),
        (["--set", "patience=3"], "there is no back end with the settings"),
        (["--set", "timeout_s"], "--set takes KEY=VALUE, got 'timeout_s'"),
    ],
)
def test_a_wrong_back_end_is_one_line(
    arguments: list[str], message: str, *, episodes: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = fidelity(capsys, saved, episodes, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("wmrl fidelity: ")
    assert message in errors


def test_a_server_must_be_told_the_name_of_its_model(saved: Path) -> None:
    path = saved / "llm_world_model.json"
    path.write_text(path.read_text().replace('"kind": "server"', '"kind": "weights"'))
    with pytest.raises(WorldModelError, match="must be told the name of its model: set model=NAME"):
        load_model(saved, backend=NOWHERE)


def test_models_that_ask_nobody_have_no_back_end(tmp_path: Path) -> None:
    EnsembleDynamics((8, 8), n_members=3, n_elites=2).save(tmp_path)
    with pytest.raises(WorldModelError, match="only an LLMWorldModel has a back end"):
        load_model(tmp_path, backend=NOWHERE)


def test_a_back_end_is_made_or_given_but_not_both(saved: Path) -> None:
    with serving(answer_outcome) as server, pytest.raises(WorldModelError, match="was made already"):
        load_model(saved, backend=asking(server), backend_settings={"retries": 3})
    assert isinstance(server, ChatServer)


def fit(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    status = main(["fit", *(str(each) for each in arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_fit_keeps_what_was_executed_and_fidelity_asks_about_the_rest(
    episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit"
    with serving(answer_outcome) as server:
        place = server.url.replace("http://", "http://me:pass-word@")
        settings = ["--backend-set", "model=small", "--backend-set", "retries=0", "--set", "shots=1"]
        arguments = [episodes, "--model", "llm", "--backend", place, *settings, "--held-out", 0.3, "--out", out]
        status, said, errors = fit(capsys, *arguments)
        assert (status, errors, server.requests) == (0, "", []), "nothing is asked"
        assert f"wmrl fidelity {out}" in said.replace("\n", "")
        status, said, errors = fidelity(capsys, out, episodes)
    assert (status, errors) == (0, "")
    report = json.loads((out / "fidelity.json").read_text())
    assert (report["model"], report["transitions"]) == ("LLMWorldModel", 2)
    assert all(len(body["messages"]) == 4 for body in server.requests), "with one executed example each"
    written = "".join(path.read_text() for path in out.rglob("*.json"))
    assert "pass-word" not in written
    assert fit(capsys, *arguments)[0] == 0, "it is complete, and not begun again"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llm"], "llm needs to know what will answer it: --backend goes with --model llm"),
        (["--model", "outcome", "--backend", NOWHERE], "outcome asks nobody: --backend goes with --model llm"),
        (["--model", "llm", "--backend", NOWHERE], "must be told the name of its model: set model=NAME"),
        (["--model", "llm", "--backend", NOWHERE, "--backend-set", "api_key=a-secret"], "a key must not be"),
        (["--model", "llm", "--backend", "nowhere/at/all"], "there is no back end with the settings"),
        (["--model", "llm", "--backend", NOWHERE, "--backend-set", "model=a", "--set", "shots=-1"], "shots must be at least 0"),
    ],
)
def test_a_fit_of_nothing_that_answers_is_one_line(
    arguments: list[str], message: str, *, episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = fit(capsys, episodes, *arguments, "--out", tmp_path / "fit")
    assert (status, errors.count("\n")) == (2, 1), errors
    assert message in errors
    assert not (tmp_path / "fit" / "fit.json").exists()
