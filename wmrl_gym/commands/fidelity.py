"""``wmrl fidelity``: how good a saved world model is, on recorded episodes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wmrl_gym.commands.settings import settings_of
from wmrl_gym.files import OUT, CannotWrite, locked, write_json, writing


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
    fidelity.add_argument("--backend", default=None, metavar="PLACE", help=_BACKEND)
    fidelity.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=_SETTING)
    fidelity.add_argument("--seed", type=int, default=0, help="of the model's randomness (default: 0)")
    fidelity.set_defaults(run=run)


_EPISODES = "held-out: of the data set that the model was fitted to, those that it never saw; all of another (default)"


_BACKEND = "what answers a language model's questions: a server's address or a folder of weights (default: the saved one)"
_SETTING = "a setting of that back end, in JSON, such as model=NAME or timeout_s=30; keys are read from the environment"


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, and write the numbers and the picture; returns the exit status: 1 where nothing was answered."""
    import gymnasium as gym

    from wmrl_gym.commands import complain, plain_console
    from wmrl_gym.world_models import WorldModelError

    console = plain_console()
    try:
        fit, model = _newest(arguments)
        out = arguments.model if arguments.out is None else arguments.out
        with writing(out, advice=OUT), locked(out):  # whether it can be written is said before the work
            pass
        report = _evaluate(model, fit, arguments)
        _write(report, model, out, console)
    except (ValueError, CannotWrite, WorldModelError, gym.error.Error) as error:
        return complain("fidelity", error)
    if report.reward.n == 0:
        print(f"wmrl fidelity: none of the {report.reward.n_unknown} steps was answered", file=sys.stderr)
        return 1
    return 0


def _write(report: Any, model: Any, out: Path, console: Any) -> None:
    """Print the tables, and write them and the picture."""
    report.show(console)
    document, said = report.to_dict(), _said(model)
    if said:
        document["asked"] = asdict(model.asked)
        console.print(said, soft_wrap=True, markup=False)
    with writing(out, advice=OUT):
        write_json(out / "fidelity.json", document)
        report.plot(out / "fidelity.png")
    console.print(f"{out / 'fidelity.json'} and {out / 'fidelity.png'}", soft_wrap=True, markup=False)


def _said(model: Any) -> str:
    """What became of a language model's questions; "" of a model that asks none."""
    if not hasattr(model, "asked"):
        return ""
    problem = getattr(model.backend, "last_problem", "")
    return str(model.asked) + (f"; the last problem of {model.backend!r}: {problem}" if problem else "")


def _newest(arguments: argparse.Namespace) -> tuple[dict[str, Any] | None, Any]:
    """The fit and its newest model; a fit that goes on meanwhile may replace the one that is being loaded."""
    from wmrl_gym.world_models import WorldModelError
    from wmrl_gym.world_models.evaluation.fitting import read_fit

    fit = read_fit(arguments.model)
    while True:
        try:
            return fit, _load(fit, arguments)
        except WorldModelError:
            newer = read_fit(arguments.model)
            if newer == fit:
                raise
            fit = newer


def _load(fit: dict[str, Any] | None, arguments: argparse.Namespace) -> Any:
    from wmrl_gym.world_models.loading import load_model

    folder = arguments.model if fit is None else arguments.model / fit["checkpoint"]
    return load_model(folder, backend=arguments.backend, backend_settings=settings_of(arguments.set))


def _evaluate(model: Any, fit: dict[str, Any] | None, arguments: argparse.Namespace) -> Any:
    from wmrl_gym.world_models.evaluation.comparison import evaluate
    from wmrl_gym.world_models.evaluation.fitting import recorded
    from wmrl_gym.world_models.loading import kind_of

    dataset = str(Path(arguments.dataset).absolute()) if Path(arguments.dataset).is_dir() else arguments.dataset
    episodes, interface = recorded(dataset, kind_of(model))
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
