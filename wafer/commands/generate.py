"""Sample text from a checkpoint: ``wafer generate``."""

import argparse
import functools
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option, trusting

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from wafer import models
    from wafer.models.convert.tokenizer import TextMarks

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "cache_dtype")
_COUNTS = ("max_new_tokens", "seed", "num_samples", "draft_tokens")
_OPTIONS = (*_SAMPLING, *_COUNTS, "stop", "add_bos")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "--checkpoint_path", required=True, help="checkpoint, model_dir or HF folder"
    )
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument(
        "-i",
        "--input",
        help="JSON lines with a key `prompt`, in a file or a pipe, instead of --prompt",
    )
    parser.add_argument("--interactive", action="store_true", help="ask for prompts until the end")
    parser.add_argument(
        "--add_bos",
        action="store_true",
        default=None,
        help="begin prompts with the begin-of-text token; default: the tokenizer's own rule (its "
        "post-processor, or add_bos_token), as transformers has it",
    )
    parser.add_argument("--no_add_bos", dest="add_bos", action="store_false", help="do not")
    parser.add_argument(
        "--max_new_tokens", type=int, default=200, help="fewer where the model's positions end"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    parser.add_argument("--top_k", type=int, default=None, help="sample from the k likeliest")
    parser.add_argument("--top_p", type=float, help="from the likeliest with this probability")
    parser.add_argument("--min_p", type=float, help="from those with this share of the likeliest's")
    parser.add_argument("--repetition_penalty", type=float, default=1.0, help="above 1: less often")
    parser.add_argument("--stop", action="append", default=[], help="end before this text; again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_samples", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=1, help="prompts of --input at once")
    parser.add_argument("--stream", action="store_true", help="write the text as it comes")
    parser.add_argument(
        "--kernels",
        choices=["auto", "csr", "dense"],
        default="auto",
        help="multiply by kept weights (csr) or by all; auto: csr where the model is pruned",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "int8"],
        default="float32",
        help="of the weights that csr kernels read; int8 with a scale for each output",
    )
    parser.add_argument(
        "--cache_dtype", choices=["float32", "bfloat16"], help="of the keys and values kept"
    )
    parser.add_argument("--draft", help="checkpoint that guesses tokens; with --temperature 0")
    parser.add_argument("--draft_tokens", type=int, default=4, help="guesses for each verification")
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    from wafer.cache import keep_programs

    keep_programs()
    if args.batch_size < 1:
        raise ValueError(f"--batch_size: expected at least 1, got {args.batch_size}")
    if args.stream and (args.num_samples > 1 or args.input):
        raise ValueError("--stream writes one sample; drop --num_samples and --input")
    _check_draft(args.draft, vars(args), args.stream)
    _check_options(vars(args))
    loaded = open_model(args.checkpoint_path, args.kernels, args.dtype, args.draft)
    options = {name: getattr(args, name) for name in _OPTIONS}
    options["emit"] = functools.partial(print, end="", flush=True) if args.stream else None
    size = 1 if args.interactive else args.batch_size
    asked = _prompts(args)
    while batch := list(itertools.islice(asked, size)):
        places, prompts = zip(*batch, strict=True)
        samples = sample(loaded, prompts, places=places, **options)
        for prompt, texts in zip(prompts, samples.texts, strict=True):
            if args.stream:
                sys.stdout.write("\n")
            elif args.input is None:
                sys.stdout.writelines(text + "\n" for text in texts)
            else:
                line = {"prompt": prompt, "texts": texts}
                sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        sys.stderr.write(samples.summary + "\n")
    return 0


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse numbers out of their range, before the model is read."""
    from wafer.models.generation.sampling import Sampling, check_sampling

    check_sampling(Sampling(**{name: options[name] for name in Sampling._fields}))
    ranges = {"max_new_tokens": (1, 2**31), "num_samples": (1, 2**31), "seed": (-(2**63), 2**63)}
    for name, (least, beyond) in ranges.items():
        if not least <= options[name] < beyond:
            raise ValueError(f"{name}: expected {least} to {beyond - 1}, got {options[name]}")


def _check_draft(draft: object, options: Mapping[str, object], shown: object) -> None:
    if draft is not None and (
        options["temperature"] != 0 or options["repetition_penalty"] != 1 or shown
    ):
        raise ValueError(
            "draft: guesses are verified for greedy text alone; give temperature 0, no "
            "repetition_penalty and no stream"
        )


def _prompts(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Where each prompt of a call stands, and its text."""
    from wafer.data.text.textfiles import read_rows
    from wafer.errors import DataError

    if args.interactive:
        yield from (("prompt", text) for text in _asked())
    elif args.input is None:
        yield "prompt", args.prompt
    else:
        rows = read_rows(pathlib.Path(args.input))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{args.input}: no row; expected JSON lines with a key `prompt`")
        for row in itertools.chain([first], rows):
            prompt = row.values.get("prompt")
            if not isinstance(prompt, str):
                raise DataError(f"{row.where}: expected a key `prompt` with text")
            yield row.where, prompt


def _asked() -> Iterator[str]:
    while True:
        sys.stderr.write("> ")
        sys.stderr.flush()
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ValueError(f"prompt: not UTF-8 ({error}); expected text in UTF-8") from None
        if not line:
            return
        yield line.rstrip("\n")


@own_flags()
def generate(
    checkpoint: str | os.PathLike[str],
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    cache_dtype: str | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    num_samples: int = 1,
    kernels: str = "auto",
    dtype: str = "float32",
    emit: Callable[[str], None] | None = None,
    draft: str | os.PathLike[str] | None = None,
    draft_tokens: int = 4,
    add_bos: bool | None = None,
    trust_code: bool = False,
) -> list[str]:
    """Continue a prompt with a trained model; sparse and finalized checkpoints alike.

    Args:
        checkpoint: a checkpoint folder, a model_dir (its newest checkpoint), or a Hugging Face
            folder.
        prompt: text to continue; '' starts a document.
        max_new_tokens: at most so many; a sample ends at any token that ends texts, and at the
            model's last position.
        temperature: 0 is greedy.
        top_k: sample from the k likeliest tokens only.
        top_p: sample from the likeliest tokens that together have this probability.
        min_p: sample from tokens with this share of the likeliest one's probability.
        repetition_penalty: above 1, tokens of the text so far become less likely.
        cache_dtype: "float32" or "bfloat16", of the keys and values that are kept.
        stop: texts before which a sample ends.
        seed: the same seed gives the same samples.
        num_samples: how many.
        kernels: "csr" multiplies by kept weights only (CPU), "dense" by all of them; "auto" is
            "csr" where a decoder's weights are pruned.
        dtype: "float32", "bfloat16" or "int8", of the weights that csr kernels read.
        emit: called with the prompt and then with what is new, as it comes; for one sample.
        draft: checkpoint of a model that guesses tokens, such as this one with fewer weights kept:
            the text of temperature 0 in less time.
        draft_tokens: guesses for each verification.
        add_bos: begin the prompt with the token that begins texts, or not; None is the tokenizer's
            own rule (its post-processor, or ``add_bos_token``), as transformers has it.
        trust_code: import code that a checkpoint names; it may do anything.

    Returns:
        Prompt and continuation, ``num_samples`` times.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: the run had no tokenizer, or the prompt is too long for the model.
        ValueError: an option out of its range; kernels or a dtype that do not serve this model.

    Examples:
        >>> wafer.generate("runs/demo", "def read_", num_samples=2)  # doctest: +SKIP
    """
    options: dict[str, Any] = {
        "temperature": temperature,
        "repetition_penalty": repetition_penalty,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "max_new_tokens": max_new_tokens,
        "num_samples": num_samples,
        "seed": seed,
    }
    _check_options(options)
    _check_draft(draft, options, emit)
    with trusting(trust_code=trust_code):
        loaded = open_model(checkpoint, kernels, dtype, draft)
    others: Any = {"cache_dtype": cache_dtype, "draft_tokens": draft_tokens, "add_bos": add_bos}
    return sample(loaded, [prompt], stop=stop, emit=emit, **options, **others).texts[0]


class Loaded(NamedTuple):
    """A model that is ready to continue prompts."""

    model: "models.Model"  #: the model
    params: Any  #: its parameters: dense, pruned weights 0, or objects that hold kept weights
    tokenizer: "Tokenizer"
    marks: "TextMarks"  #: ids with which texts begin and end
    kernels: str = "dense kernels"  #: what multiplies by the weights, in words
    draft: "Loaded | None" = None  #: one that guesses tokens for it


class Samples(NamedTuple):
    """What prompts became."""

    texts: list[list[str]]  #: for each prompt, prompt and continuation, once for each sample
    tokens: int  #: that the model added, of all samples, with the end-of-text marks
    seconds: float  #: of wall time; with the compilation, at the first prompt of its length
    summary: str  #: tokens, seconds, tokens per second, what computed them; too few positions


def open_model(
    checkpoint: str | os.PathLike[str],
    kernels: str = "auto",
    dtype: str = "float32",
    draft: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Load a model, its tokenizer and its draft; arguments as ``generate`` has them.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: the run had no tokenizer.
        ValueError: kernels or a dtype that do not serve this model, or one that writes no text.
    """
    from wafer.commands.inputs import weights_folder

    paths = [weights_folder(one) for one in (checkpoint, draft) if one is not None]
    for path in paths:
        _require_text(path)
    loaded, *drafts = (_open(path, kernels, dtype) for path in paths)
    return loaded._replace(draft=drafts[0]) if drafts else loaded


def _require_text(path: pathlib.Path) -> None:
    """Refuse a model that writes no text, before its weights and its other sections are read."""
    from wafer.commands.inputs import stored_config
    from wafer.models.names import FAMILIES_ALONE

    config = stored_config(path, FAMILIES_ALONE)
    if not getattr(config, "with_lm_head", False):
        raise ValueError(
            f"{path}: this model writes no text ({config.name}); expected a decoder or "
            "encoder-decoder with a language-model head"
        )


def _open(path: pathlib.Path, kernels: str, dtype: str) -> Loaded:
    from wafer.commands.inputs import load_decoding
    from wafer.data.text.tokenizer import load_tokenizer
    from wafer.errors import DataError
    from wafer.models.convert.tokenizer import find_tokenizer, read_marks

    tokenizer = find_tokenizer(path)
    if tokenizer is None:
        raise DataError(
            f"no tokenizer.json in {path} or the folders above: text needs the tokenizer of the "
            f"run; copy it to {path}"
        )
    model, params, multiplied_by = load_decoding(path, kernels, dtype)
    marks = read_marks(path, model.config.vocab_size)
    return Loaded(model, params, load_tokenizer(tokenizer), marks, multiplied_by)


def sample(
    loaded: Loaded,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    seed: int,
    num_samples: int,
    places: Sequence[str] = (),
    stop: Sequence[str] = (),
    emit: Callable[[str], None] | None = None,
    draft_tokens: int = 4,
    add_bos: bool | None = None,
    **sampling: Any,
) -> Samples:
    """Continue prompts together, which stand at ``places`` for errors; see ``generate``.

    Raises:
        DataError: a prompt is too long for the model.
        ValueError: an option out of its range.
    """
    import jax
    import numpy as np

    from wafer import models
    from wafer.commands.prompts import encode_prompts, require_text
    from wafer.errors import DataError
    from wafer.models.families.seq2seq_config import Seq2SeqConfig

    require_text("stop", stop, empty=False)
    model, params, tokenizer, marks, kernels, draft = loaded
    whole = isinstance(model.config, Seq2SeqConfig)  # its encoder reads the prompt
    encoded = encode_prompts(tokenizer, prompts, marks, add_bos=add_bos, whole=whole)
    ids = [row for row in encoded for _ in range(num_samples)]
    lengths = np.asarray([len(row) for row in ids])
    room = model.config.max_position_embeddings - int(lengths.max())
    if room < 1:
        where = dict(enumerate(places)).get(int(lengths.argmax()) // num_samples, "prompt")
        raise DataError(
            f"{where}: the prompt has {lengths.max()} tokens and the model {room + lengths.max()} "
            "positions; shorten the prompt"
        )
    filled = np.asarray([row + [0] * (lengths.max() - len(row)) for row in ids], np.int32)
    count = min(max_new_tokens, room)
    began = time.perf_counter()
    shared: Any = {"lengths": lengths, "end_id": marks.ends}
    if draft is not None:
        guessed = models.speculate(
            model,
            params,
            (draft.model, draft.params),
            filled,
            count,
            draft_tokens=draft_tokens,
            **shared,
        )
        blocks = iter([guessed.tokens])
        kernels += f"; {guessed.accepted:.0%} of the draft's guesses accepted"
    else:
        key, block = jax.random.key(seed), 4 if emit else 16 if stop else max(1, count)
        blocks = models.generate_stream(
            model, params, filled, count, key=key, block=block, **shared, **sampling
        )
    written = _Written(tokenizer, () if whole else ids, marks.ends, tuple(stop), [[] for _ in ids])
    shown = _Shown(emit, prompts[0])
    for block in blocks:
        written.add(block)
        shown.update(prompts[0] + _sure(written.text(0), stop))
        if all(map(written.ended, range(len(ids)))):
            break
    seconds = time.perf_counter() - began
    texts = [written.text(i) for i in range(len(ids))]
    shown.update(prompts[0] + texts[0])
    grouped = [
        [prompt + text for text in texts[i * num_samples : (i + 1) * num_samples]]
        for i, prompt in enumerate(prompts)
    ]
    total = sum(map(len, written.rows))
    summary = (
        f"{total:,} tokens in {seconds:.2f} s, {total / seconds:.1f} tokens/s: "
        f"{model.config.dtype} on {jax.default_backend().upper()}, {kernels}; "
        + _described(tokenizer, encoded[0][0], marks)
        + _limit(written, model.config.max_position_embeddings, count, max_new_tokens)
    )
    return Samples(grouped, total, seconds, summary)


def _described(tokenizer: "Tokenizer", first: int, marks: "TextMarks") -> str:
    """Say how prompts begin and which tokens end a text."""
    name = lambda token: repr(tokenizer.id_to_token(token))
    special = first == marks.begin or first in marks.ends
    begin = f"prompts begin with {name(first)}" if special else "no token before prompts"
    ends = ", ".join(map(name, marks.ends)) or "no known token; give eos_token_id in config.json"
    return f"{begin}, texts end at {ends}"


def _limit(written: "_Written", positions: int, count: int, asked: int) -> str:
    """Tell which length cut texts short: the model's, where it is less than what was asked for."""
    if count == asked or all(map(written.ended, range(len(written.rows)))):
        return ""
    cut = f"{count} new tokens, of {asked} asked for"
    return f"\ntext ends at the model's {positions} positions: {cut}"


class _Written(NamedTuple):
    """Tokens of each row, to the one that ends it."""

    tokenizer: "Tokenizer"
    prompts: Sequence[Sequence[int]]  #: ids before them in the same text, () where there are none
    ends: tuple[int, ...]
    stop: tuple[str, ...]
    rows: list[list[int]]

    def add(self, block: Any) -> None:
        for row, tokens in zip(self.rows, block.tolist(), strict=True):
            for token in tokens:
                if row and row[-1] in self.ends:
                    break
                row.append(token)

    def whole(self, i: int) -> str:
        """Text behind the prompt; decoded with it, for a token's text can depend on the last."""
        from wafer.data.text.tokenizer import tokenizing

        row = self.rows[i]
        row = row[:-1] if row and row[-1] in self.ends else row
        before = list(self.prompts[i]) if self.prompts else []
        with tokenizing("the tokenizer cannot decode the tokens"):
            return self.tokenizer.decode([*before, *row])[len(self.tokenizer.decode(before)) :]

    def text(self, i: int) -> str:
        """Text before all stops."""
        whole = self.whole(i)
        return whole[: min((whole.find(s) for s in self.stop if s in whole), default=len(whole))]

    def ended(self, i: int) -> bool:
        row = self.rows[i]
        return (bool(row) and row[-1] in self.ends) or any(s in self.whole(i) for s in self.stop)


def _sure(text: str, stop: Sequence[str]) -> str:
    """Text without an end that may begin a stop, or be half a character."""
    held = max((n for s in stop for n in range(len(s)) if text.endswith(s[:n])), default=0)
    return text[: len(text) - held].rstrip("\ufffd")


class _Shown:
    """Calls ``emit`` with what is new of a text that grows."""

    def __init__(self, emit: Callable[[str], None] | None, prompt: str) -> None:
        self._emit, self._shown = emit, 0
        self.update(prompt)

    def update(self, text: str) -> None:
        if self._emit is not None and len(text) > self._shown:
            self._emit(text[self._shown :])
            self._shown = len(text)
