"""Real transitions and where they are kept."""

from wmrl_gym.data.transitions import TransitionBuffer, Transitions

__all__ = ["TransitionBuffer", "Transitions"]
