"""Modules of a loop: flax's nnx under the names and questions of torch.

A model derives from ``nn.Module`` and is made of ``nnx``'s layers. After ``compile`` it answers
``parameters()``, ``state_dict()`` and the rest itself, as a torch module does.
"""

import functools
from collections.abc import Mapping

from flax import nnx
from jaxtyping import PyTree

from wafer.loop.elsewhere import explain
from wafer.loop.machine import current_backend
from wafer.loop.nn import functional, utils
from wafer.loop.tracing.model import CompiledModel, Parameters

__all__ = ["LoopModule", "Module", "functional", "utils"]


class LoopModule(nnx.Module):
    """An nnx module with the methods of a torch module, once ``compile`` has taken it."""

    def _compiled(self) -> CompiledModel:
        for part in current_backend().parts:
            if isinstance(part, CompiledModel) and part.inner is self:
                return part
        raise RuntimeError(
            f"{type(self).__name__} is not compiled; call compile(model, backend) first"
        )

    def parameters(self) -> Parameters:
        """Parameters, for an optimizer."""
        return self._compiled().parameters()

    def named_parameters(self) -> Parameters:
        """Names and parameters."""
        return self._compiled().named_parameters()

    def state_dict(self) -> dict[str, PyTree]:
        """Copy parameters and running statistics to the host, as a nested dict."""
        return self._compiled().state_dict()

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Replace parameters and running statistics.

        Raises:
            CheckpointError: names or shapes differ from the model's.
        """
        self._compiled().load_state_dict(tree)

    def apply(self, algorithm: object) -> "LoopModule":
        """Attach a sparsity algorithm, as in releases 2.2+; the optimizer needs it as well."""
        self._compiled().apply(algorithm)
        return self

    def train(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, mode: bool = True, **attributes: object
    ) -> "LoopModule":
        """Switch dropout on (or off)."""
        del attributes
        self._compiled().train(mode)
        return self

    def eval(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, **attributes: object
    ) -> "LoopModule":
        """Switch dropout off."""
        return self.train(mode=False, **attributes)


Module = LoopModule
"""The name that ports of torch modules use."""

__getattr__ = functools.partial(explain, __name__)
