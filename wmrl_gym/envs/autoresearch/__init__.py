"""AutoResearch: an agent writes code for a real data set; the code is really run, and graded on answers that it cannot see."""

from __future__ import annotations

from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design_env import AutoResearchDesign, AutoResearchDesignEnv
from wmrl_gym.envs.autoresearch.embedded.catalogue import list_tasks, load_task
from wmrl_gym.envs.autoresearch.embedded.recipes import HELD_OUT_TASKS, TRAIN_TASKS
from wmrl_gym.envs.autoresearch.tasks.format import Task, TaskError
from wmrl_gym.envs.autoresearch.text_env import AutoResearchEnv, AutoResearchText

__all__ = [
    "HELD_OUT_TASKS",
    "TRAIN_TASKS",
    "AutoResearchDesign",
    "AutoResearchDesignEnv",
    "AutoResearchEnv",
    "AutoResearchText",
    "Task",
    "TaskError",
    "list_tasks",
    "load_task",
    "render_design",
]
