"""``wmrl fit``: a world model from recorded episodes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wmrl_gym.commands.settings import alone_in, settings_of
from wmrl_gym.world_models.loading import MODELS


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    fit = commands.add_parser("fit", help="fit a world model to a Minari data set; goes on where it stopped")
    fit.add_argument("dataset", help="folder of a Minari data set, or its id")
    fit.add_argument("--model", default="dynamics", help=_MODEL)
    fit.add_argument("--out", type=Path, default=None, help="folder (default: runs/fit/DATASET)")
    fit.add_argument("--held-out", type=float, default=0.1, help="share of episodes that it never sees (default: 0.1)")
    fit.add_argument("--chunk", type=int, default=2_000, help="transitions in one update, saved after each (default: 2000)")
    fit.add_argument("--seed", type=int, default=0, help="of training and of the choice of held-out episodes (default: 0)")
    fit.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model, in JSON")
    fit.add_argument("--backend", default=None, metavar="PLACE", help=_BACKEND)
    fit.add_argument("--backend-set", action="append", default=[], metavar="KEY=VALUE", help=_BACKEND_SETTING)
    fit.set_defaults(run=run)


_MODEL = f"what it predicts: {', '.join(f'{name} ({kind.predicts})' for name, kind in MODELS.items())} (default: dynamics)"
_BACKEND = "what will answer a language model's questions: a server's address or a folder of weights; nothing is asked by the fit"
_BACKEND_SETTING = "a setting of that back end, in JSON, such as model=NAME; keys are read from the environment"


def run(arguments: argparse.Namespace) -> int:
    """Fit what is not fitted yet, and print the model's measures; returns the exit status."""
    import gymnasium as gym

    from wmrl_gym.commands import complain, plain_console
    from wmrl_gym.files import CannotWrite
    from wmrl_gym.world_models import WorldModelError
    from wmrl_gym.world_models.evaluation.fitting import FitPlan, OfflineFit, recorded

    console = plain_console()
    try:
        dataset = str(Path(arguments.dataset).absolute()) if Path(arguments.dataset).is_dir() else arguments.dataset
        settings = {**settings_of(arguments.set), **_backend(arguments)}
        plan = FitPlan(dataset, arguments.model, settings, arguments.held_out, arguments.chunk, arguments.seed)
        episodes, interface = recorded(dataset, arguments.model)
        folder = arguments.out if arguments.out is not None else Path("runs/fit") / Path(dataset).name
        with alone_in(folder):
            fit = OfflineFit(plan, episodes, interface=interface, folder=folder)
            measures = _fit(fit, console)
    except (ValueError, CannotWrite, WorldModelError, gym.error.Error) as error:
        return complain("fit", error)
    for name, value in measures.items():
        console.print(f"{name:<24} {value:.5g}")
    held_out = f"{len(fit.held_out)} of {len(episodes)} episodes were held out"
    console.print(f"model in {folder}; {held_out}: wmrl fidelity {folder} {dataset}", soft_wrap=True)
    return 0


def _backend(arguments: argparse.Namespace) -> dict[str, Any]:
    """The setting of a model that says what answers it, for those that ask."""
    from wmrl_gym.world_models.llm.saving import SERVER, make_backend, settings_of_backend, with_place

    changes = settings_of(arguments.backend_set)
    if (arguments.model == "llm") != (arguments.backend is not None):
        problem = "llm needs to know what will answer it" if arguments.model == "llm" else f"{arguments.model} asks nobody"
        raise ValueError(f"{problem}: --backend goes with --model llm")
    if arguments.backend is None:
        return {}
    if "api_key" in changes:
        raise ValueError("the back end's settings are saved, and a key must not be: set the environment variable WMRL_API_KEY")
    described = with_place(None, arguments.backend, changes)
    if described["kind"] == SERVER:  # without a password in its address; weights are not loaded here, since the fit does it
        return {"backend": settings_of_backend(make_backend(described))}
    return {"backend": described}


def _fit(fit: Any, console: Any) -> dict[str, float]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("fit"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[said]}", markup=False), console=console) as bars:
        bar = bars.add_task("fit", total=len(fit.training), completed=fit.done, said="")

        def advance(episodes: int, measures: dict[str, float]) -> None:
            error = measures.get("wm/reward_error", measures.get("wm/held_out_rmse"))
            bars.update(bar, advance=episodes, said="" if error is None else f"held-out reward error {error:.4g}")

        result: dict[str, float] = fit.run(advance)
        return result
