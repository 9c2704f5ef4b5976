"""World models that read: a language model predicts what executing an attempt would return."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.world_models.llm.chat import ChatClient
    from wmrl_gym.world_models.llm.local import LocalModel, unpack_gguf
    from wmrl_gym.world_models.llm.model import LLMWorldModel

__all__ = ["ChatClient", "LLMWorldModel", "LocalModel", "unpack_gguf"]

__getattr__, __dir__ = lazy(
    __name__, {"ChatClient": "chat", "LLMWorldModel": "model", "LocalModel": "local", "unpack_gguf": "local"}
)
