"""How does a decoder write text on a mesh of PEs, whose weights never leave their memory?"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.decoder.costs import cycles, parts
from wafer.hpc.decoder.sizes import Sizes, sizes_of
from wafer.hpc.decoder.weights import pack
from wafer.models.families.decoder_config import DecoderConfig

__all__ = ["Decoded", "Decoder", "cycles", "generate", "parts", "sizes_of"]


class Decoded(NamedTuple):
    """What a model wrote."""

    tokens: np.ndarray  #: [count] int32, the likeliest one each time
    logits: np.ndarray  #: [count, vocabulary] float32 that they were taken from
    #: [prompt + count - 1] int of each token that was read; the last ``count`` of them gave a token
    cycles: np.ndarray


class Decoder:
    """A decoder on a simulated wafer, its weights in the PEs' memory.

    Args:
        cfg: the decoder's configuration (``model.config``).
        params: its parameters.
        grid: rows and columns of PEs.
        positions: tokens that a text may have; None is all that the model has positions for.

    Raises:
        WaferError: what the program does not do, or a mesh that does not fit.
    """

    def __init__(
        self, cfg: DecoderConfig, params: Any, grid: tuple[int, int], positions: int | None = None
    ) -> None:
        self.sizes: Sizes = sizes_of(cfg, grid, positions)
        self._vocab = cfg.vocab_size
        self._wafer = host.runtime("decoder", **self.sizes._asdict())
        host.write(self._wafer, "weights", pack(cfg, params, self.sizes))

    def generate(self, prompt: Sequence[int], count: int) -> Decoded:
        """Continue a prompt by ``count`` tokens, greedily.

        Raises:
            WaferError: no prompt, a token that the model does not have, too many tokens.
        """
        size, wafer = self.sizes, self._wafer
        known = _checked(prompt, count, self._vocab, size.positions)
        tokens = np.zeros(size.positions + 1, np.uint32)
        tokens[: len(known)] = known
        host.write(wafer, "tokens", np.tile(tokens, (size.height, size.width, 1)))
        wafer.launch("restart")
        spent, logits = [], []
        for read in range(len(known) + count - 1):
            start = wafer.cycles
            wafer.launch("decode", len(known), 1)
            spent.append(wafer.cycles - start)
            if read + 1 >= len(known):
                logits.append(self._logits())
        last = len(known) + count
        written = np.zeros((1, 1, last), np.uint32)
        wafer.memcpy_d2h(written, wafer.get_id("tokens"), 0, 0, 1, 1, last)
        return Decoded(
            written[0, 0, len(known) :].astype(np.int32), np.array(logits), np.array(spent)
        )

    def _logits(self) -> np.ndarray:
        """[vocabulary] float32; all rows of PEs have the same."""
        size, wafer = self.sizes, self._wafer
        words = np.zeros((1, size.width, 2 + size.vocab), np.float32)
        wafer.memcpy_d2h(words, wafer.get_id("logits"), 0, 0, size.width, 1, 2 + size.vocab)
        return words[0, :, 2:].ravel()[: self._vocab]


def _checked(prompt: Sequence[int], count: int, vocab: int, positions: int) -> np.ndarray:
    """The prompt as an array, if it and the tokens to write fit."""
    known = np.asarray(prompt, np.int64)
    if known.ndim != 1 or not len(known) or count < 1:
        raise WaferError(
            f"prompt: shape {known.shape}, count: {count}; expected at least one token to begin"
            " with and one to write"
        )
    if wrong := known[(known < 0) | (known >= vocab)].tolist():
        raise WaferError(f"prompt: token {wrong[0]}; the model has 0 to {vocab - 1}")
    if len(known) + count - 1 > positions:
        raise WaferError(
            f"prompt: {len(known)} tokens and {count} more, of which the last is not read;"
            f" there is room for {positions}"
        )
    return known


def generate(
    model: Any,
    params: Any,
    prompt: Sequence[int],
    count: int,
    *,
    grid: tuple[int, int] = (4, 4),
    positions: int | None = None,
) -> Decoded:
    """Continue a prompt on PEs, token for token as ``models.generate`` does.

    Args:
        model: a decoder of ``models.build``.
        params: its parameters, a tree of arrays.
        prompt: token ids.
        count: tokens to write.
        grid: rows and columns of PEs.
        positions: tokens that a text may have; None is all that the model has positions for.

    Raises:
        WaferError: what the program does not do, a mesh or a text that does not fit.
    """
    room = sizes_of(model.config, grid, positions).positions
    _checked(prompt, count, model.config.vocab_size, room)  # before the program is compiled
    return Decoder(model.config, params, grid, positions).generate(prompt, count)
