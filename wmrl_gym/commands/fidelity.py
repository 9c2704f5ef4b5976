"""``wmrl fidelity``: how good a saved world model is, on recorded episodes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    fidelity = commands.add_parser("fidelity", help="compare a saved world model with recorded episodes")
    fidelity.add_argument("model", type=Path, help="folder of `wmrl fit`, or one that a model was saved in")
    fidelity.add_argument("dataset", help="folder of a Minari data set, or its id")
    fidelity.add_argument("--episodes", choices=("held-out", "all"), default="held-out", help=_EPISODES)
    fidelity.add_argument("--horizons", default="1,2,5,10,20", help="steps ahead, separated by commas (default: 1,2,5,10,20)")
    fidelity.add_argument(
        "--out", type=Path, default=None, help="folder for fidelity.json and fidelity.png (default: the model's)"
    )
    fidelity.add_argument("--seed", type=int, default=0, help="of the model's randomness (default: 0)")
    fidelity.set_defaults(run=run)


_EPISODES = "held-out: of the data set that the model was fitted to, those that it never saw; all of another (default)"


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, and write the numbers and the picture; returns the exit status."""
    import gymnasium as gym
    from rich.console import Console

    from wmrl_gym.world_models import WorldModelError

    console = Console()
    try:
        report = _evaluate(arguments)
    except (ValueError, WorldModelError, gym.error.Error) as error:
        print(f"wmrl fidelity: {error}", file=sys.stderr)
        return 2
    report.show(console)
    out = arguments.model if arguments.out is None else arguments.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "fidelity.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    report.plot(out / "fidelity.png")
    console.print(f"{out / 'fidelity.json'} and {out / 'fidelity.png'}", soft_wrap=True)
    return 0


def _evaluate(arguments: argparse.Namespace) -> Any:
    from wmrl_gym.world_models import OutcomeModel
    from wmrl_gym.world_models.fidelity import evaluate
    from wmrl_gym.world_models.fitting import read_fit, recorded
    from wmrl_gym.world_models.loading import load_model

    fit = read_fit(arguments.model)
    model = load_model(arguments.model if fit is None else arguments.model / fit["checkpoint"])
    dataset = str(Path(arguments.dataset).absolute()) if Path(arguments.dataset).is_dir() else arguments.dataset
    episodes, interface = recorded(dataset, "outcome" if isinstance(model, OutcomeModel) else "dynamics")
    numbers = list(range(len(episodes)))
    if fit is not None and fit["plan"]["dataset"] == dataset and arguments.episodes == "held-out":
        numbers = fit["held_out"]
        if not numbers:
            raise ValueError("no episode was held out when the model was fitted: --episodes all, or another data set")
    try:
        horizons = [int(each) for each in arguments.horizons.split(",")]
    except ValueError as error:
        raise ValueError(f"--horizons must be whole numbers with commas, got {arguments.horizons!r}") from error
    return evaluate(model, episodes.read_many(numbers), interface=interface, horizons=horizons, seed=arguments.seed)
