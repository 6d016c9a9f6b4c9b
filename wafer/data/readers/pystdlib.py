"""The functions of Python's own sources as a dataset, with a tokenizer trained on them."""

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.sources import DocumentSource
from wafer.data.text.functions import tokens_of
from wafer.data.text.tokenizer import END_OF_TEXT, token_bytes


def pystdlib(cfg: Any, context: Context) -> Dataset:
    """Read the running Python's sources, with a tokenizer trained on the training part."""
    # A resumed run, or one that goes on from weights, keeps their tokenizer.
    arrays = tokens_of(cfg, context.tokenizer)
    about = json.loads(arrays["about"].tobytes())
    tokenizer = Tokenizer.from_str(about["tokenizer"])
    end: Any = tokenizer.token_to_id(END_OF_TEXT)
    documents = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
    source = DocumentSource(documents, end, cfg.max_sequence_length)
    mean = float(source.lengths.mean())
    return Dataset(
        source=source,
        row_length=cfg.max_sequence_length,
        pack=cfg.use_vsl,
        mean_length=mean,
        tokenizer=about["tokenizer"],
        special_ids={"bos_token_id": end, "eos_token_id": end},
        token_bytes=token_bytes(tokenizer)
        if isinstance(tokenizer.decoder, decoders.ByteLevel)
        else None,
        references=about["references"],
        summary=(
            f"Python standard library, {cfg.split}: {about['functions']:,} functions, "
            f"{about['bytes'] / 1e6:.2f} MB, {source.lengths.sum():,} tokens, "
            f"longest/mean = {source.lengths.max()}/{mean:.0f} = {source.lengths.max() / mean:.1f} "
            f"(text sha256 {about['digest'][:12]})"
        ),
    )
