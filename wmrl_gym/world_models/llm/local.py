"""A causal language model of ``transformers`` in this process, which fills in the answer's form instead of writing freely."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from wmrl_gym.world_models.llm.schema import Field, Question, Reply
from wmrl_gym.world_models.torch_state import learning, predicting

_LINE_TOKENS = 5
"""At most so many digits, each of which may be a token."""


class LocalModel:
    """Answers questions with a model in this process: the same as the agent's, if that is what it is given.

    The JSON is written field by field. Its punctuation is ours, so that it always closes. A choice is made by the
    log-probabilities of the closed answers, one short forward pass for each, and their distribution is kept: it says how sure the
    model is without sampling. Texts and numbers are decoded greedily from the tokens that may stand there. A confidence is the
    probability of the first choice. Everything is deterministic; a question's seed makes no difference.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer, with or without a chat template.
        batch_size: questions answered in one pass.
        max_text_tokens: of each text.
        max_prompt_tokens: a longer prompt has no reply; None takes what the model can hold.
        source: the folder or name that the weights can be loaded from again; "" where there is none.
    """

    knows_chances: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int = 16,
        max_text_tokens: int = 48,
        max_prompt_tokens: int | None = None,
        source: str = "",
    ) -> None:
        if batch_size < 1 or max_text_tokens < 1:
            raise ValueError(f"batch_size and max_text_tokens must be at least 1, got {batch_size} and {max_text_tokens}")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_size, self.max_text_tokens, self.source = batch_size, max_text_tokens, source
        self._given_prompt_tokens = max_prompt_tokens
        held = int(getattr(model.config, "max_position_embeddings", 2**31))
        self.max_prompt_tokens = held - 8 * max_text_tokens if max_prompt_tokens is None else max_prompt_tokens
        self.too_long = 0
        """Prompts that were too long to be answered."""
        self._marks: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, dtype: str = "float32", **options: Any) -> LocalModel:
        """Load weights and tokenizer from a folder, or by a name that is in the cache of the hub.

        Args:
            path: the folder or name.
            device: None takes a GPU where there is one.
            dtype: "float32" gives each question the same answer in any batch; "bfloat16" is smaller, and quicker on a GPU.
            options: see the class.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with learning():
            model = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype)).to(device)
        source = str(Path(path).absolute()) if Path(path).is_dir() else str(path)
        return cls(model, AutoTokenizer.from_pretrained(str(path)), source=source, **options)

    def settings(self) -> dict[str, Any] | None:
        """What loads the same model again, as json; None where it did not come from a folder or by a name."""
        if not self.source:
            return None
        found: dict[str, Any] = {"kind": "weights", "path": self.source, "dtype": str(self.model.dtype).removeprefix("torch.")}
        found |= {"batch_size": self.batch_size, "max_text_tokens": self.max_text_tokens}
        return found | {"max_prompt_tokens": self._given_prompt_tokens}

    def ask(self, questions: Sequence[Question]) -> list[Reply | None]:
        """The reply to each question; None where the prompt is too long."""
        replies: list[Reply | None] = [None] * len(questions)
        prompts = [self._prompt(question) for question in questions]
        fitting = [row for row, prompt in enumerate(prompts) if len(prompt) <= self.max_prompt_tokens]
        self.too_long += len(questions) - len(fitting)
        # Alike in form, and in length, so that little of a batch is padding.
        fitting.sort(key=lambda row: (repr(questions[row].fields), len(prompts[row])))
        while fitting:
            fields = questions[fitting[0]].fields
            rows = [row for row in fitting[: self.batch_size] if questions[row].fields == fields]
            del fitting[: len(rows)]
            with predicting():
                filled = _Form(self, [prompts[row] for row in rows]).fill(fields)
            for row, reply in zip(rows, filled, strict=True):
                replies[row] = reply
        return replies

    def tokens(self, text: str) -> list[int]:
        """A text's tokens, without any that open or close a sequence."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def marks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which tokens may stand inside a JSON string, which are digits only, and which close a string: bool, shape (V,) each."""
        if self._marks is None:
            size = self.model.get_output_embeddings().weight.shape[0]
            special = set(self.tokenizer.all_special_ids)
            texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            inside, digits, closing = (torch.zeros(size, dtype=torch.bool) for _ in range(3))
            for token, text in enumerate(texts):
                if token in special or not text:
                    continue
                inside[token] = text.isprintable() and not set(text) & {'"', "\\", "\ufffd"}
                digits[token] = text.isascii() and text.isdigit()
                closing[token] = text == '"'
            self._marks = tuple(mark.to(self.model.device) for mark in (inside, digits, closing))  # type: ignore[assignment]
        assert self._marks is not None
        return self._marks

    def _prompt(self, question: Question) -> list[int]:
        if self.tokenizer.chat_template is None:
            text = "\n\n".join(f"{role}: {content}" for role, content in question.messages) + "\n\nassistant: "
        else:
            turns = [{"role": role, "content": content} for role, content in question.messages]
            text = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return self.tokens(text)


class _Form:
    """A batch of answers that are being filled in: the model's state, and what has been written so far.

    A row may be fed fewer tokens than another, and tokens may be tried and taken back: their places in the cache stay, masked.
    """

    mask: Tensor
    position: Tensor
    cache_name: str

    def __init__(self, local: LocalModel, prompts: list[list[int]]) -> None:
        self.local, self.n = local, len(prompts)
        self.device = local.model.device
        self.next = self._read(prompts)
        """Log-probabilities of the next token: float32, shape (B, V)."""

    def fill(self, fields: Sequence[Field]) -> list[Reply]:
        """Write every field that applies, in order."""
        answers: list[dict[str, Any]] = [{} for _ in range(self.n)]
        chances: list[dict[str, Any]] = [{} for _ in range(self.n)]
        for field in fields:
            rows = [row for row in range(self.n) if field.applies(answers[row])]
            if rows:
                self._open(field, rows, answers)
                if field.kind == "choice":
                    self._choose(field, rows, answers, chances)
                elif field.kind == "fraction":
                    self._state(field, rows, answers, chances)
                else:
                    self._decode(field, rows, answers)
        return [Reply(json.dumps(answer), known) for answer, known in zip(answers, chances, strict=True)]

    def _open(self, field: Field, rows: list[int], answers: list[dict[str, Any]]) -> None:
        """The punctuation and the key before a field's value."""
        quote = '"' if field.kind in ("choice", "text") else ""
        openings = {row: f'{"{" if not answers[row] else ", "}"{field.name}": {quote}' for row in rows}
        self._feed({row: self.local.tokens(opening) for row, opening in openings.items()})

    def _choose(self, field: Field, rows: list[int], answers: list[dict[str, Any]], chances: list[dict[str, Any]]) -> None:
        written = [self.local.tokens(f'{choice}"') for choice in field.choices]
        logits = torch.stack([self._try(tokens) for tokens in written], dim=1)
        probabilities = torch.softmax(logits.double(), dim=1).cpu().numpy()
        for row in rows:
            answers[row][field.name] = field.choices[int(probabilities[row].argmax())]
            chances[row][field.name] = probabilities[row]
        self._feed({row: written[int(probabilities[row].argmax())] for row in rows})

    def _state(self, field: Field, rows: list[int], answers: list[dict[str, Any]], chances: list[dict[str, Any]]) -> None:
        """A confidence is that of the first choice, where there is one."""
        for row in rows:
            first = next(iter(chances[row].values()), np.ones(1))
            answers[row][field.name] = round(float(first.max()), 4)
        self._feed({row: self.local.tokens(str(answers[row][field.name])) for row in rows})

    def _decode(self, field: Field, rows: list[int], answers: list[dict[str, Any]]) -> None:
        """A text, until its closing quote is likeliest, or a number of at least one digit."""
        inside, digits, closing = self.local.marks()
        number = field.kind == "line"
        allowed, limit = (digits, _LINE_TOKENS) if number else (inside, self.local.max_text_tokens)
        written: dict[int, list[int]] = {row: [] for row in rows}
        going = list(rows)
        for step in range(limit):
            possible = inside | closing
            if number:  # it ends where something else is likelier than one more digit
                possible = digits if step == 0 else torch.ones_like(digits)
            best = self.next.masked_fill(~possible, -torch.inf).argmax(dim=1)
            going = [row for row in going if bool(allowed[best[row]])]
            if not going:
                break
            for row in going:
                written[row].append(int(best[row]))
            self._feed({row: [written[row][-1]] for row in going})
        for row in rows:
            text = self.local.tokenizer.decode(written[row]) if written[row] else ""
            answers[row][field.name] = int(text[:_LINE_TOKENS] or 0) if number else text[: field.max_length]
        if not number:
            self._feed({row: self.local.tokens('"') for row in rows})

    def _try(self, tokens: list[int]) -> Tensor:
        """Log-probability of the same tokens in every row, float32, shape (B,); nothing is kept of them."""
        before, position = self.mask.shape[1], self.position.clone()
        scores, _ = self._forward([tokens] * self.n)
        after = torch.tensor(tokens[1:], device=self.device)
        total = self.next[:, tokens[0]]
        if len(tokens) > 1:
            total = total + scores[:, :-1].gather(2, after.expand(self.n, -1)[:, :, None])[:, :, 0].sum(dim=1)
        self.mask[:, before:] = 0
        self.position = position
        return total

    def _feed(self, tokens: dict[int, list[int]]) -> None:
        """Go on by some tokens in some rows."""
        rows = list(tokens)
        last = self._forward([tokens.get(row, []) for row in range(self.n)])[1]
        self.next = self.next.clone()
        self.next[rows] = last[rows]

    def _read(self, prompts: list[list[int]]) -> Tensor:
        """Take in the prompts; log-probabilities of what comes next, float32, shape (B, V)."""
        lengths = torch.tensor([len(each) for each in prompts], device=self.device)
        longest = int(lengths.max())
        # Padded on the left, so that all end together and only the last place's logits, which are large, are computed.
        padded = torch.tensor([[0] * (longest - len(each)) + each for each in prompts], device=self.device)
        steps = torch.arange(longest, device=self.device) - (longest - lengths[:, None])
        self.mask = (steps >= 0).long()
        self.position = lengths
        out = self.local.model(
            input_ids=padded, attention_mask=self.mask, position_ids=steps.clamp(min=0), use_cache=True, logits_to_keep=1
        )
        # transformers renamed it in version 5.
        self.cache_name = "cache" if "cache" in out else "past_key_values"
        self.cache = out[self.cache_name]
        return torch.log_softmax(out.logits[:, -1].float(), dim=-1)

    def _forward(self, tokens: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Log-probabilities after each fed token, float32, shape (B, L, V), and after each row's last, shape (B, V)."""
        lengths = torch.tensor([len(each) for each in tokens], device=self.device)
        longest = int(lengths.max())
        padded = torch.tensor([each + [0] * (longest - len(each)) for each in tokens], device=self.device)
        steps = torch.arange(longest, device=self.device)
        self.mask = torch.cat([self.mask, (steps < lengths[:, None]).long()], dim=1)
        out = self.local.model(
            input_ids=padded,
            attention_mask=self.mask,
            position_ids=self.position[:, None] + steps,
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self.cache = out[self.cache_name]
        self.position = self.position + lengths
        scores = torch.log_softmax(out.logits.float(), dim=-1)
        return scores, scores[torch.arange(self.n), (lengths - 1).clamp(min=0)]


@learning()
def unpack_gguf(source: str | Path, folder: str | Path) -> Path:
    """Write a gguf file's model and tokenizer into a folder, as safetensors and json, unless it is there already.

    ``transformers`` reads gguf slowly, and cannot save what it has read; from the folder the same weights load in seconds.

    Args:
        source: the gguf file.
        folder: the new folder; it appears whole or not at all.

    Returns:
        ``folder``.

    Raises:
        FileNotFoundError: there is no such file.
    """
    source, folder = Path(source), Path(folder)
    if (folder / "config.json").is_file():
        return folder
    if not source.is_file():
        raise FileNotFoundError(f"no gguf file at {source}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.bfloat16, **read)
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **read)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(model)(config).to(torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as new:
        whole = Path(new) / "weights"
        fresh.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        try:
            whole.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # another process was first
                raise
            shutil.rmtree(whole)
    return folder
