"""A world model of the reward: predicts from images and an instruction how far a robot has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from wmrl_gym.data.demonstrations import Episode
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.world_models.base import Interface, Observed, PairKind, Prediction, RewardModel, WorldModelError
from wmrl_gym.world_models.progress.clips import Assembler, Clip, ClipSampler, TrainSettings, clip_of, rgb
from wmrl_gym.world_models.progress.networks import train, vision_of
from wmrl_gym.world_models.ranges import check_all_whole
from wmrl_gym.world_models.sentence_encoders import sentence_encoder
from wmrl_gym.world_models.storage import Layout
from wmrl_gym.world_models.torch_state import learning, predicting

Collapse = Literal["gain", "final", "max", "success"]
"""What becomes of a trajectory's progress: the last k frames' mean less the first k's, the last k's mean, the most, or the
probability that the last frame shows success."""

Pays = Literal["end", "each"]

LAYOUT = Layout("ProgressModel", 1, "progress.json", "progress.safetensors")


@dataclass(frozen=True, slots=True)
class ProgressState:
    """State of B rollouts.

    Args:
        start: what is kept of each first frame.
        text: float32, shape (B, size). The sentences' vectors.
        first: float64, shape (B, k). Progress of the first k frames; NaN where there were none yet.
        last: float64, shape (B, k). Of the last k, the newest at the end; NaN where there were none yet.
        most: float64, shape (B,).
        success: float64, shape (B,). Probability of success at the last frame.
        count: int64, shape (B,). Frames so far.
        paid: float64, shape (B,). What has been paid so far.
    """

    start: NDArray[Any]
    text: NDArray[np.float32]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    most: NDArray[np.float64]
    success: NDArray[np.float64]
    count: NDArray[np.int64]
    paid: NDArray[np.float64]


class ProgressModel(RewardModel):
    """Scores real episodes from their frames and their instruction, with no label but time: progress in [0, 1] for each frame.

    It learns from successful demonstrations that progress is the share of the time that has passed, from sentences of other tasks
    that nothing has been done, and from clips played backwards that progress may be lost. A second output, the probability of
    success, learns from the demonstrations' ends and from anchors. It plays the part of the progress predictor with which arXiv
    2608.12564 rewards a robot's rollouts. Use it as ``WorldModelWrapper(env, model, replaces="reward")``.

    Args:
        vision: "small" (a convolutional network that learns), or the name or folder of a transformer, which stays frozen.
        text: "hashed" (words, no weights), or the name or folder of a transformer, which stays frozen.
        collapse: what becomes of a trajectory's progress.
        pays: "end": the collapsed trajectory, in the episode's last step. "each": in each step, what it adds.
        k: frames in the means at both ends.
        frames: kept of each episode to learn from.
        image_key: of the image in observations.
        text_key: of the instruction in observations.
        min_clips: real episodes that :meth:`update` waits for before it learns from them.
        update_steps: gradient steps of an update.
        capacity: newest clips that are kept to learn from.
        training: how the network is trained.
        seed: of the untrained network.

    Raises:
        ValueError: an argument out of range.

    >>> model = ProgressModel()
    >>> model.fitted
    False
    >>> frames = np.zeros((5, 48, 48, 3), np.uint8)
    >>> model.progress(frames, "open the drawer").shape
    (5,)
    """

    pairs: ClassVar[PairKind] = "open_loop"

    def __init__(
        self,
        *,
        vision: str = "small",
        text: str = "hashed",
        collapse: Collapse = "gain",
        pays: Pays = "end",
        k: int = 3,
        frames: int = 24,
        image_key: str = "image",
        text_key: str = "instruction",
        min_clips: int = 8,
        update_steps: int = 60,
        capacity: int = 1_000,
        training: TrainSettings | None = None,
        seed: int = 0,
    ) -> None:
        if collapse not in ("gain", "final", "max", "success"):
            raise ValueError(f'collapse must be "gain", "final", "max" or "success", got {collapse!r}')
        if pays not in ("end", "each"):
            raise ValueError(f'pays must be "end" or "each", got {pays!r}')
        least = {"k": (k, 1), "frames": (frames, 2), "min_clips": (min_clips, 1), "capacity": (capacity, 1)}
        check_all_whole(least | {"update_steps": (update_steps, 0), "seed": (seed, 0)})
        for name, given in {"vision": vision, "text": text, "image_key": image_key, "text_key": text_key}.items():
            if not isinstance(given, str):
                raise TypeError(f"{name} must be a text, got {given!r}")
        if not isinstance(training, (TrainSettings, NoneType)):
            raise TypeError(f"training must be TrainSettings, got {training!r}")
        self.collapse: Collapse = collapse
        self.pays: Pays = pays
        self.k, self.frames = k, frames
        self.image_key, self.text_key = image_key, text_key
        self.min_clips, self.update_steps, self.capacity = min_clips, update_steps, capacity
        self.training = TrainSettings() if training is None else training
        self.seed = seed
        self._names = {"vision": vision, "text": text}
        self._vision = vision_of(vision)
        self._encode = sentence_encoder(text)
        self._known: dict[str, NDArray[np.float32]] = {}
        self._network: torch.nn.Module | None = None
        self._clips: list[Clip] = []
        self._assembler = Assembler(image_key, text_key, frames)
        self._new, self._steps = 0, 0

    def bind(self, interface: Interface) -> None:
        """Check that the environment shows an image and a sentence.

        Raises:
            WorldModelError: it does not.
        """
        space = interface.observation_space
        parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}
        image, text = parts.get(self.image_key), parts.get(self.text_key)
        if not (isinstance(image, gym.spaces.Box) and len(image.shape) == 3 and image.dtype == np.uint8):
            raise WorldModelError(f"ProgressModel needs images (uint8, H x W x 3) under {self.image_key!r}, got {space}")
        if not isinstance(text, gym.spaces.Text):
            raise WorldModelError(
                f"ProgressModel needs sentences under {self.text_key!r}, got {text}: EncodeInstruction goes around "
                "WorldModelWrapper, not into it"
            )
        super().bind(interface)

    @property
    def fitted(self) -> bool:
        """Whether it has learnt anything."""
        return self._steps > 0

    def fit(self, episodes: Iterable[Episode], *, steps: int = 600, rng: np.random.Generator | None = None) -> dict[str, float]:
        """Learn from demonstrations, and from all that is kept of those before.

        Args:
            episodes: with images and instructions; failed ones are welcome.
            steps: gradient steps. 0 only remembers the episodes, for :meth:`update`: a saved network has forgotten its own.
            rng: of the batches; None takes the model's seed.

        Returns:
            The mean losses at the end.

        Raises:
            WorldModelError: there is no successful episode to learn from.
        """
        self._clips += [clip_of(each, self._vision.prepare, image_key=self.image_key, frames=self.frames) for each in episodes]
        self._clips = self._clips[-self.capacity :]
        if not any(clip.success for clip in self._clips):
            raise WorldModelError(f"progress is learnt from successful episodes, and none of {len(self._clips)} is one")
        return self._train(steps, np.random.default_rng(self.seed) if rng is None else rng)

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        """Learn from anchors: whether the real episodes that have ended were successes (their rewards sum to more than 0.5)."""
        self._new += self._take_in(transitions)
        measures = {"wm/clips": float(len(self._clips))}
        if self._new < self.min_clips or not any(clip.success for clip in self._clips) or not self.update_steps:
            return measures
        self._new = 0
        return measures | self._train(self.update_steps, rng)

    def remember(self, transitions: Transitions) -> None:
        self._take_in(transitions)

    def _take_in(self, transitions: Transitions) -> int:
        """Keep the episodes that have ended; returns how many these are."""
        clips = self._assembler.add(transitions, self._vision.prepare)
        self._clips = (self._clips + clips)[-self.capacity :]
        return len(clips)

    def progress(self, images: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
        """Progress of each frame of an episode: float64, shape (T,), in [0, 1].

        Args:
            images: uint8, shape (T, H, W, 3), the episode's first frame at the front.
            instruction: what was asked for.
        """
        return self._score(images, instruction)[:, 0]

    def success(self, images: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
        """Probability that each frame of an episode shows success: float64, shape (T,)."""
        return self._score(images, instruction)[:, 1]

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> ProgressState:
        start = self._vision.prepare(rgb(observation[self.image_key]))
        text = self._vectors(observation[self.text_key])
        n = len(start)
        unknown = np.full((n, self.k), np.nan)
        zero = np.zeros(n)
        blank = ProgressState(start, text, unknown, unknown, zero, zero, np.zeros(n, np.int64), zero)
        return self._with_frame(blank, start)

    def judge(
        self, state: ProgressState, action: Any, observed: Observed, rng: np.random.Generator
    ) -> tuple[ProgressState, Prediction]:
        after = self._with_frame(state, self._vision.prepare(rgb(observed.observation[self.image_key])))
        value = self._collapsed(after)
        over = observed.terminated | observed.truncated
        due = np.ones(len(value), bool) if self.pays == "each" else over
        reward = np.where(due, value - state.paid, 0.0)
        after = replace(after, paid=state.paid + reward)
        known = np.full(len(value), self.fitted)
        progress = {"progress": after.last[:, -1], "success": after.success}
        nan = np.full(len(value), np.nan)
        return after, Prediction(
            observed.observation, reward, nan, observed.terminated.copy(), observed.truncated.copy(), due, known, progress
        )

    def save(self, path: str | Path) -> None:
        """Write network and settings: ``progress.safetensors`` and ``progress.json`` below ``path``. Clips are not kept."""
        document = {**self._names, "steps": self._steps} | {name: getattr(self, name) for name in _SETTINGS}
        weights = {} if self._network is None else self._network.state_dict()
        LAYOUT.write(Path(path), document, {name: weight.cpu().numpy() for name, weight in weights.items()})

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote, settings included.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        interface = self.interface
        with LAYOUT.reading(Path(path)) as (document, arrays):
            names = ("vision", "text", *_SETTINGS)
            ProgressModel.__init__(self, training=self.training, **{name: document[name] for name in names})
            self._steps = int(document["steps"])
        try:
            if arrays:
                self._built().load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        except RuntimeError as error:  # such as where another network is named than the weights are of
            raise WorldModelError(f"the weights in {path} are not of the network that its settings name: {error}") from error
        if interface is not None:
            self.bind(interface)

    def _with_frame(self, state: ProgressState, now: NDArray[Any]) -> ProgressState:
        """The state after one more frame."""
        said = self._run(now, state.start, state.text)
        progress, n = said[:, 0], len(now)
        first = state.first.copy()
        early = np.flatnonzero(state.count < self.k)
        first[early, state.count[early]] = progress[early]
        last = np.concatenate([state.last[:, 1:], progress[:, None]], axis=1)
        most = np.where(state.count == 0, progress, np.maximum(state.most, progress))
        return ProgressState(
            state.start, state.text, first, last, most, said[:, 1], state.count + np.ones(n, np.int64), state.paid
        )

    def _collapsed(self, state: ProgressState) -> NDArray[np.float64]:
        if self.collapse == "max":
            return state.most.copy()
        if self.collapse == "success":
            return state.success.copy()
        final = np.nanmean(state.last, axis=1)
        return final if self.collapse == "final" else final - np.nanmean(state.first, axis=1)

    def _score(self, images: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
        kept = self._vision.prepare(rgb(np.asarray(images)))
        text = np.repeat(self._vectors([instruction]), len(kept), axis=0)
        return self._run(kept, np.repeat(kept[:1], len(kept), axis=0), text)

    def _run(self, now: NDArray[Any], start: NDArray[Any], text: NDArray[np.float32]) -> NDArray[np.float64]:
        """Progress and probability of success: float64, shape (N, 2)."""
        network, said = self._built(), []
        with predicting():
            for at in range(0, len(now), 256):
                parts = (torch.from_numpy(np.ascontiguousarray(part[at : at + 256])) for part in (now, start, text))
                said.append(torch.sigmoid(network(*parts)).double().numpy())
        return np.concatenate(said) if said else np.zeros((0, 2))

    @learning()
    def _built(self) -> torch.nn.Module:
        if self._network is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self._network = self._vision.network(self._encode.size).eval()
        return self._network

    def _vectors(self, sentences: Iterable[str]) -> NDArray[np.float32]:
        wanted = [str(sentence) for sentence in sentences]
        for sentence in wanted:
            if sentence not in self._known:
                self._known[sentence] = self._encode([sentence])[0]
        return np.stack([self._known[sentence] for sentence in wanted])

    def _train(self, steps: int, rng: np.random.Generator) -> dict[str, float]:
        sampler = ClipSampler(self._clips, self._vectors(clip.sentence for clip in self._clips), self.training)
        measures = train(self._built(), sampler, steps=steps, rng=rng)
        self._steps += steps
        return measures


_SETTINGS = (
    *("collapse", "pays", "k", "frames", "image_key", "text_key"),
    *("min_clips", "update_steps", "capacity", "seed"),
)
