"""A decoder as the harness asks it: log-likelihoods and texts.

Token ids are those that the harness's Hugging Face model makes, so that its scores of an exported
folder are the same.
"""

import functools
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from tokenizers import Tokenizer

from wafer import vsl
from wafer.config.runconfig import EleutherEvalHarness
from wafer.data.text.tokenizer import load_tokenizer, tokenizing
from wafer.errors import DataError
from wafer.models.base import Model
from wafer.models.convert.tokenizer import find_tokenizer, read_marks
from wafer.models.errors import optional
from wafer.models.generation.decode import generate_stream
from wafer.models.generation.likelihood import TOKENS, Likelihood, log_likelihoods
from wafer.models.paths import Params, named_leaves
from wafer.sparsity import decoding

WHY = "running tasks of the EleutherAI harness"
_ANSWER = 256  # tokens, where a task has no number
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_WIDTHS = vsl.Ladder(growth=1.5, multiple=64)  # of prompts: each is compiled


class TaskModel:
    """A decoder with its tokenizer.

    Args:
        model: a decoder with a language-model head.
        params: its parameters, dense, pruned weights 0.
        folder: of the weights; the tokenizer is found from there.
        options: lengths, special tokens, seed.
        kernels: "auto" multiplies by kept values where that is faster, "dense" by all.

    Raises:
        DataError: no tokenizer, or no token is known that ends texts.
        ValueError: ``max_sequence_length`` is more than the model's positions.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        folder: str | os.PathLike[str],
        options: EleutherEvalHarness,
        kernels: str = "auto",
    ) -> None:
        self.model, self.options, self._params = model, options, params
        self._sparse = kernels != "dense" and decoding.problem(model) is None
        source = options.tokenizer_file_path or folder
        found = find_tokenizer(source)
        if found is None:
            raise DataError(
                f"no tokenizer.json in {source} or the folders above: tasks are texts; copy it "
                "there, or name it by tokenizer_file_path"
            )
        self._tokenizer: Tokenizer = load_tokenizer(found)
        marks = read_marks(source, model.config.vocab_size)
        self.ends = marks.ends if options.eos_id is None else (options.eos_id,)
        if not self.ends:
            raise DataError(f"{found}: no token is known that ends texts; name its id by eos_id")
        self._first = self.ends[0] if marks.begin is None else marks.begin
        # The harness asks the tokenizer, whose token may be another than config.json's.
        self.begin = self._first if marks.named is None else marks.named
        self._put_first = bool(marks.adds_begin)
        positions = model.config.max_position_embeddings
        self.longest = options.max_sequence_length or positions
        if self.longest > positions:
            raise ValueError(
                f"max_sequence_length: {self.longest}; expected at most the model's {positions} "
                "positions"
            )

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids, with special tokens or without."""
        with tokenizing("the tokenizer cannot decode the tokens"):
            return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: to encode.
            special: add the tokens of the tokenizer's rule; None does, unless the text begins with
                the token that begins texts.
        """
        if special is None:
            special = not text.startswith(self.decode([self.begin], special=True))
        with tokenizing(f"{text!r:.60}: the tokenizer cannot encode it"):
            ids = self._tokenizer.encode(text, add_special_tokens=special).ids
        return (
            [self._first, *ids] if special and self._put_first and ids[:1] != [self._first] else ids
        )

    @functools.cached_property
    def _stream_params(self) -> Params:
        if not self._sparse:
            return self._params
        return decoding.stream_params(self.model, self._params, TOKENS)

    @functools.cached_property
    def _decode_params(self) -> Params:
        if not self._sparse:
            return self._params
        return decoding.convert(self.model, named_leaves(self._params)).params

    def likelihoods(self, requests: Sequence[tuple[list[int], list[int]]]) -> list[Likelihood]:
        """Compute the log-likelihood of each (context, continuation)."""
        return log_likelihoods(self.model, self._stream_params, requests, self.longest)

    def rolling(self, texts: Sequence[str]) -> list[float]:
        """Compute the log-likelihood of each whole text, window by window."""
        utils = optional("lm_eval.utils", WHY)
        windows, counts = [], []
        for text in texts:
            own = utils.get_rolling_token_windows(self.encode(text), self.begin, self.longest, 1)
            counts.append(len(new := [*map(utils.make_disjoint_window, own)]))
            windows += new
        found = iter(self.likelihoods(windows))
        return [sum(x.logprob for x in itertools.islice(found, n)) for n in counts]

    def answers(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Continue texts; those with equal keys of generation together.

        Args:
            requests: (text, ``until``, ``max_gen_toks``, keys of sampling); a text that is too
                long loses its first tokens.

        Raises:
            ValueError: a key that is not known, or more new tokens than the model has positions.
        """
        groups: dict[str, list[int]] = {}
        for i, (_, keys) in enumerate(requests):
            groups.setdefault(json.dumps(keys, sort_keys=True), []).append(i)
        found = [""] * len(requests)
        for keys, members in groups.items():
            stops, count, sampling = _generation(json.loads(keys))
            if (room := self.longest - count) < 1:
                raise ValueError(
                    f"max_gen_toks: {count} new tokens; expected fewer than the {self.longest} "
                    "tokens that the model reads at once"
                )
            rows = {i: self.encode(requests[i][0])[-room:] or [self.begin] for i in members}
            order = sorted(rows, key=lambda i: -len(rows[i]))
            size, key = min(self.options.batch_size, len(order)), jax.random.key(self.options.seed)
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                filled = [rows[i] for i in batch] + [rows[batch[-1]]] * (size - len(batch))
                sampling["key"] = jax.random.fold_in(key, start)
                continued = self._continued(filled, count, stops, **sampling)
                for i, text in zip(batch, continued, strict=False):
                    found[i] = text
        return found

    def _continued(
        self, rows: Sequence[list[int]], count: int, stops: Sequence[str], **options: Any
    ) -> list[str]:
        width = min(_WIDTHS.capacity(len(rows[0])), self.longest - count)
        prompts = np.asarray([row + [0] * (width - len(row)) for row in rows], np.int32)
        options |= {"lengths": [len(row) for row in rows], "end_id": self.ends}
        blocks: list[np.ndarray] = []
        texts: list[str] = []
        for block in generate_stream(self.model, self._decode_params, prompts, count, **options):
            blocks.append(block)
            written = np.concatenate(blocks, axis=1).tolist()
            before = [[*itertools.takewhile(lambda i: i not in self.ends, ids)] for ids in written]
            texts = [self.decode(ids) for ids in before]
            ended = (len(own) < len(ids) for own, ids in zip(before, written, strict=True))
            if all(e or any(s in t for s in stops) for e, t in zip(ended, texts, strict=True)):
                break
        for stop in stops:
            texts = [text.partition(stop)[0] for text in texts]
        return texts


def _generation(keys: Mapping[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
    """Return the texts that end an answer, its most tokens, and the keys of sampling."""
    given = dict(keys)
    until = given.pop("until", None) or []
    stops = [until] if isinstance(until, str) else list(until)
    lengths = [given.pop(name, None) for name in _LENGTHS]
    count = next((int(n) for n in lengths if n is not None), _ANSWER)
    sampled = given.pop("do_sample", None)
    sampling = {name: given.pop(name) for name in _SAMPLING if given.get(name) is not None}
    if given:
        raise ValueError(
            f"generation_kwargs: {', '.join(given)} is not known; expected until, do_sample, "
            f"{', '.join((*_LENGTHS, *_SAMPLING))}"
        )
    if sampled is False or not sampling.get("temperature"):
        sampling = {"repetition_penalty": sampling.get("repetition_penalty", 1.0)}
    return [stop for stop in stops if stop], count, sampling
