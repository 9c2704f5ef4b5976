"""Agents for the text environment that need no language model: they record data, and stand in for a policy in studies."""

from wmrl_gym.agents.brief import Brief
from wmrl_gym.agents.scripted import Agent, ScriptedProposer

__all__ = ["Agent", "Brief", "ScriptedProposer"]
