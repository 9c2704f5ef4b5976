"""``wmrl evaluate``: an agent or a policy on AutoResearch tasks, really executed and graded on hidden answers."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wmrl_gym.evaluation.config import EvaluationConfig
    from wmrl_gym.evaluation.run import Manner

_EXAMPLES = """\
examples:
  wmrl evaluate scripted --tasks diabetes,digits --seeds 3
  wmrl evaluate --base-url http://127.0.0.1:8000/v1 --model my-model --tasks held-out --max-tokens 500000
  wmrl evaluate my_agent.py:act --tasks path/to/my-task --workers 2
  wmrl evaluate runs/demo/recommended/policy-4.safetensors --tasks all
"""


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    evaluate = commands.add_parser(
        "evaluate",
        help="run an agent on AutoResearch tasks and grade what it reaches",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    evaluate.add_argument(
        "agent",
        nargs="?",
        default=None,
        help="random, scripted, path.py:name or module:name with act(observation) -> reply, or a policy (.zip, .safetensors)",
    )
    evaluate.add_argument("--base-url", default=None, help="of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    evaluate.add_argument("--model", default=None, help="the name that the server knows its model by")
    evaluate.add_argument("--temperature", type=float, default=0.7, help="of a server's sampling (default: 0.7)")
    evaluate.add_argument("--max-reply-tokens", type=int, default=4096, help="of a server's reply (default: 4096)")
    evaluate.add_argument("--skill", type=float, default=0.5, help="of the scripted agent, from 0 to 1 (default: 0.5)")
    evaluate.add_argument("--tasks", default="held-out", help="names, directories, held-out, train or all, separated by commas")
    evaluate.add_argument("--seeds", type=int, default=1, help="episodes of each task (default: 1)")
    evaluate.add_argument("--first-seed", type=int, default=0, help="the first episode's (default: 0)")
    evaluate.add_argument("--max-turns", type=int, default=None, help="attempts in an episode (default: 4, of policies 3)")
    evaluate.add_argument("--slots", type=int, default=8, help="episodes at once (default: 8)")
    evaluate.add_argument("--workers", type=int, default=2, help="executions at once (default: 2)")
    evaluate.add_argument("--sandbox", default="local", help="local, docker or ray (default: local)")
    evaluate.add_argument("--reply-timeout", type=float, default=120.0, help="seconds for one reply (default: 120)")
    evaluate.add_argument("--timeout", type=float, default=None, help="seconds for one episode (default: none)")
    evaluate.add_argument("--max-tokens", type=int, default=None, help="that may be spent, prompts and replies together")
    evaluate.add_argument("--max-executions", type=int, default=None, help="scripts that may be run")
    evaluate.add_argument("--max-seconds", type=float, default=None, help="that it may take, all invocations together")
    evaluate.add_argument("--out", type=Path, default=None, help="folder of results (default: runs/evaluate/AGENT)")
    evaluate.add_argument("--fresh", action="store_true", help="begin anew in a folder that holds results")
    evaluate.add_argument("--json", action="store_true", help="print the results as JSON, and progress to standard error")
    evaluate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate what is missing, and print the table; the exit status is 1 where episodes were lost."""
    import gymnasium as gym
    from rich.console import Console

    from wmrl_gym.commands import complain, plain_console
    from wmrl_gym.commands.settings import alone_in, remove_results
    from wmrl_gym.evaluation.run import MARKER, Evaluation
    from wmrl_gym.files import CannotWrite
    from wmrl_gym.rollouts import AgentFailed
    from wmrl_gym.sandbox import SandboxUnavailable

    console = Console(stderr=True, markup=False, emoji=False) if arguments.json else plain_console()
    try:
        config, manner = _config(arguments), _manner(arguments)
        out = arguments.out
        if out is None:
            out = Path("runs/evaluate") / re.sub(r"[^\w.-]+", "-", config.agent.label).strip("-.")[-100:]
        if arguments.fresh:
            remove_results(out, marker=MARKER)
        config.load_tasks()  # before a folder is made
        with alone_in(out):
            results = Evaluation(config, out, manner=manner, console=console).run()
    except (AgentFailed, CannotWrite, SandboxUnavailable, TypeError, ValueError, gym.error.Error) as error:
        return complain("evaluate", error)
    if arguments.json:
        print(json.dumps(results))
    _show(results, out, console=console, with_table=not arguments.json)
    return 1 if results["missing"].get("lost") or results["stopped"] else 0


def _config(arguments: argparse.Namespace) -> EvaluationConfig:
    from wmrl_gym.evaluation.config import AgentSpec, EvaluationConfig

    if (arguments.agent is None) == (arguments.base_url is None):
        raise ValueError("name one agent: a word (random, scripted, path.py:name, a policy's file), or --base-url and --model")
    if arguments.base_url is not None:
        from wmrl_gym.world_models.llm.chat import ChatClient

        if not arguments.model:
            raise ValueError("a server must be told the name of its model: give --model")
        settings = {"temperature": arguments.temperature, "max_reply_tokens": arguments.max_reply_tokens}
        ChatClient(arguments.base_url, arguments.model, max_tokens=arguments.max_reply_tokens)  # checks them
        agent = AgentSpec("server", arguments.base_url, arguments.model, settings)
    elif arguments.agent == "scripted":
        agent = AgentSpec.of("scripted", skill=arguments.skill)
    else:
        agent = AgentSpec.of(arguments.agent)
    tasks = [arguments.tasks] if Path(arguments.tasks).is_dir() else [each.strip() for each in arguments.tasks.split(",")]
    return EvaluationConfig(
        agent,
        tuple(tasks),
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        max_turns=arguments.max_turns,
        timeout_s=arguments.timeout,
        reply_timeout_s=arguments.reply_timeout,
    )


def _manner(arguments: argparse.Namespace) -> Manner:
    from wmrl_gym.evaluation.config import Caps
    from wmrl_gym.evaluation.run import Manner

    for name in ("slots", "workers"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    caps = Caps(arguments.max_tokens, arguments.max_executions, arguments.max_seconds)
    return Manner(arguments.slots, arguments.workers, arguments.sandbox, caps)


def _show(results: dict[str, Any], out: Path, *, console: Any, with_table: bool) -> None:
    from wmrl_gym.evaluation.summary import table

    if with_table:
        console.print(table(results))
    for line in shortfall(results):
        print(line, file=sys.stderr)
    spent = results["spent"]
    console.print(f"{spent['tokens']:,} tokens, {spent['executions']:,} executions, {spent['seconds']:.0f} s", highlight=False)
    console.print(f"{out / 'results.json'}\n{out / 'transcript.jsonl'}", style="dim", highlight=False)


def shortfall(results: dict[str, Any]) -> list[str]:
    """Sentences about episodes that are missing, and about agents that failed."""
    lines, missing, wanted = [], results["missing"], results["wanted"]
    if results.get("stopped"):
        lines.append(f"stopped: {results['stopped']}")
    names = {"capped": "did not end within the bounds", "lost": "were lost"}
    for name, count in missing.items():
        because = f" ({'; '.join(results['lost_because'])})" if name == "lost" and results["lost_because"] else ""
        lines.append(f"{count} of {wanted} episodes {names.get(name, 'were not run')}{because}")
    if missing:
        lines.append("they count in no figure; the same command runs them, with larger bounds where these were reached")
    failures = results["summary"]["all"]["agent_failures"]
    if failures:
        problem = next(each["problem"] for each in results["episodes"] if each["ended"] != "finished")
        lines.append(f"in {failures} episodes the agent failed, and has what it had reached; the first: {problem}")
    return lines
