"""Cycles of decoding: of a kernel for one token, and of a decoder on one mesh of PEs.

On a mesh all PEs do every product, as in the example ``decoder`` (``wafer/csl/examples/decoder``);
the closed form is within 5 % of its simulated cycles on up to 32 x 32 PEs. The kernels of a floor
plan take their figures from it: a row of a product takes its elements and a few cycles more, a sum
over PEs the words that the middle one adds and sends, and the way there. Keys and values stay where
they are, dealt out to the PEs token by token.
"""

from typing import Any, NamedTuple

import numpy as np

from wafer.compiler.graph import Kernel
from wafer.models.families.decoder_config import DecoderConfig
from wafer.spec import WSE2, WaferSpec

Array = np.ndarray

# Cycles on WSE-2. An element of a product and a word of a sum take one each; these were fitted by
# least squares to 776 tokens of 194 random runs on up to 7 x 7 PEs and lines of 8 to 39 PEs (worst
# 2.1 %), after the costs of 29 November 2026.
ROW_CYCLES = 11.1  # of a product
_CACHED_ROW_CYCLES = 18.1  # of a product with keys or values
_HEAD_CYCLES = 136
_SHARE_CYCLES = 77.5  # of a token, in softmax
LINE_CYCLES = 20.2  # a sum over a line of PEs
SIDE_CYCLES = 12.4  # the other side of a line of more than two
HOP_CYCLES = 6.7  # from PE to PE on the way to the middle of a line
_TOKEN_CYCLES = 101
_LAYER_CYCLES = 584
_FEATURE_CYCLES = 13.2  # of a layer: norms, residuals
_PAIR_CYCLES = 13.7  # of features that turn
_ACTIVATION_CYCLES = {2: 136, 3: 68.0, 4: 114}  # GELU, GELU by tanh, SiLU: a number
_SKIPPED_CYCLES = 1.5  # a number whose activation another PE of the column computes
_CHOICE_CYCLES = 266  # of the next token
_SCORE_CYCLES = 4.9  # of a token that may be chosen
_ROOT_CYCLES = 110  # of a square root and a division, scalar code

_ACTIVATIONS = {
    "relu": 0, "reglu": 0, "squared_relu": 1, "gelu": 2, "geglu": 2, "gelu_new": 3, "gelu_fast": 3,
    "geglu_new": 3, "silu": 4, "swish": 4, "swiglu": 4,
}  # fmt: skip
# Of each key the values that the program has a way for.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("learned", "rotary", None),
    "position_embedding_offset": (0,),
    "pos_scaling_factor": (1.0,),
    "pos_scaling_type": ("linear",),
    "norm_type": ("layernorm", "biasless-layernorm", "rmsnorm", "nonparametric-layernorm"),
    "norm_first": (True,),
    "norm_first_sandwich": (False,),
    "norm_outputs_only": (False,),
    "parallel_attention": (False,),
    "residual_after_norm": (False,),
    "embedding_layer_norm": (False,),
    "embeddings_scale": (1.0,),
    "logits_scale": (1.0,),
    "final_logit_softcapping": (None,),
    "with_lm_head": (True,),
    "nonlinearity": tuple(_ACTIVATIONS),
    "moe": (None,),
    "attention_type": ("scaled_dot_product", "dot_product"),
    "attention_sliding_window_length": (None,),
    "attention_logit_softcapping": (None,),
    "attention_qk_norm_layer": (None,),
    "scale_qk_dot_by_layer_idx": (False,),
    "fixed_sparse_attention": (None,),
    "clip_qkv": (None,),
    "lora_params": (None,),
}
_PROGRAM_BYTES = 6144  # left to the code, whose size in the chip's instructions is not known
_LARGEST = 2**16 - 1  # count of a PE


class MeshParts(NamedTuple):
    """The params of the example's ``layout.csl``, which says what each is.

    Vectors are divided into parts of equal size, the last ones filled up with zeros.
    """

    width: int
    height: int
    layers: int
    positions: int
    features: int
    here: int
    heads: int
    part: int
    team: int
    filter: int
    vocab: int
    gates: int
    activation: int
    learned: int
    rotary: int
    own_table: int
    centred: int
    hidden: int
    epsilon: int

    @property
    def slots(self) -> int:
        """Tokens whose keys and values find room on a PE."""
        return _fours(-(-self.positions // self.height))

    @property
    def weight_words(self) -> int:
        """Words of weights on a PE."""
        rows, up = self.features + 1, self.filter * self.gates
        layer = rows * 3 * self.here + (self.here + 1) * self.features
        layer += rows * up + (self.filter + 1) * self.features + 4 * self.features
        words = self.layers * layer + 2 * self.features + rows * self.vocab
        words += self.own_table * self.vocab * self.features
        words += self.learned * -(-self.positions // self.width) * self.features
        return words + self.rotary * self.slots * self.part

    @property
    def cache_words(self) -> int:
        """Words of keys and values on a PE."""
        return 2 * self.layers * self.here * self.slots

    @property
    def bytes(self) -> int:
        """Of a PE's memory: weights, cache, tokens and vectors."""
        vectors = 2 * self.features + max(3 * self.here, self.filter * self.gates)
        vectors += self.vocab + self.part + self.heads * (self.slots + 2) + self.here + 16
        return 4 * (self.weight_words + self.cache_words + self.positions + 1 + vectors)


def _fours(n: int) -> int:
    """Rounded up to a multiple of four, so that all rows begin in one bank of the memory."""
    return -(-n // 4) * 4


def mesh_parts(cfg: object, grid: tuple[int, int], positions: int) -> MeshParts | None:
    """Divide a decoder among PEs.

    Args:
        cfg: configuration of a model.
        grid: rows and columns of PEs.
        positions: tokens that a text may have.

    Returns:
        None if the program has no way for the model, or it does not fit.
    """
    if not isinstance(cfg, DecoderConfig):
        return None
    if any(getattr(cfg, key) not in values for key, values in _SUPPORTED.items()):
        return None
    height, width = grid
    rotary = cfg.position_embedding_type == "rotary"
    team = max(1, width // cfg.num_heads)
    heads = -(-cfg.num_heads // width) if team == 1 else 1
    head_slice = -(-cfg.head_dim // team)
    head_slice += head_slice % 2 if rotary else 0
    mesh = MeshParts(
        width=width,
        height=height,
        layers=cfg.num_hidden_layers,
        positions=positions,
        features=_fours(-(-cfg.hidden_size // height)),
        here=_fours(heads * head_slice),
        heads=heads,
        part=head_slice,
        team=team,
        filter=_fours(-(-cfg.filter_size // width)),
        vocab=_fours(-(-cfg.vocab_size // width)),
        gates=2 if cfg.gated else 1,
        activation=_ACTIVATIONS[str(cfg.nonlinearity)],
        learned=int(cfg.position_embedding_type == "learned"),
        rotary=int(rotary),
        own_table=int(not cfg.share_embedding_weights),
        centred=int(cfg.norm_type != "rmsnorm"),
        hidden=cfg.hidden_size,
        epsilon=int(np.float32(cfg.layer_norm_epsilon).view(np.uint32)),
    )
    counted = max(mesh.vocab * width, mesh.weight_words) <= _LARGEST
    return mesh if counted and mesh.bytes <= WSE2.sram_bytes - _PROGRAM_BYTES else None


def line_cycles(pes: Array | int, words: Array | int) -> Array:
    """Return the cycles of a sum over a line of PEs, all of which get it; 0 of one PE.

    Args:
        pes: [choices] of the line.
        words: [choices] to add.
    """
    pes, words = np.asarray(pes), np.asarray(words)
    sides = LINE_CYCLES + SIDE_CYCLES * (pes > 2)
    busy = sides + HOP_CYCLES * (pes // 2) + words * np.minimum(pes, 3)
    return np.where(pes > 1, busy, 0)


def _product_cycles(k: Array | int, n: Array | int) -> Any:
    """Cycles of a product of k rows inside a PE, each of which takes n steps."""
    return k * (n + ROW_CYCLES)


def _head_cycles(size: int, held: Array | int, simd: int = 1) -> Any:
    """Cycles of a head of a token, of ``size`` numbers, on a PE that holds the keys of some."""
    rows = size * (_ceil(held, simd) + _CACHED_ROW_CYCLES)
    rows = rows + held * (_ceil(size, simd) + _CACHED_ROW_CYCLES)
    return rows + held * _SHARE_CYCLES + _HEAD_CYCLES


def _ceil(a: Array | int, b: int) -> Any:
    return -(-a // b)


def gemv_cycles(k: Array, n: Array, grid: tuple[Array, Array], simd: int) -> Array:
    """Cycles of ``y[n] += x[k] W[k, n]`` per PE, with the way in and the sums along the rows.

    Args:
        k: [choices] inputs of a PE.
        n: [choices] outputs of a PE.
        grid: h and w, [choices] each: outputs are on h rows of PEs, inputs on w columns.
        simd: numbers per cycle; a word of 32 bits carries two where it is more than one.
    """
    (h, w), pack = grid, 2 if simd > 1 else 1
    product = _product_cycles(k, _ceil(n, simd))
    return _ceil(k, pack) + h + product + line_cycles(w, _ceil(n, pack))


def attention_cycles(
    kernel: Kernel, pe_heads: Array, held: Array, columns: Array, spec: WaferSpec
) -> Array:
    """Cycles of a token's attention to those that a PE holds.

    Args:
        kernel: products [queries, head] x [head, tokens] in groups that share keys.
        pe_heads: [choices] groups of a PE.
        held: [choices] tokens of a PE.
        columns: [choices] PEs that share the tokens of a head.
        spec: the machine.
    """
    product = kernel.products[0]
    queries, size = pe_heads * product.T, product.K
    each = _head_cycles(size, held, spec.simd_16bit if kernel.bits == 16 else 1)
    greatest = line_cycles(columns, queries)
    return queries * each + greatest + line_cycles(columns, queries * (size + 1))


def norm_cycles(lanes: Array, columns: Array) -> Array:
    """Return the cycles of a vector's norm on a line of PEs.

    Args:
        lanes: [choices] lane operations of each PE.
        columns: [choices] PEs of the line.
    """
    return lanes + line_cycles(columns, 2) + _ROOT_CYCLES


def token_cycles(mesh: MeshParts, position: int) -> int:
    """Return the cycles of reading one token and choosing the next, on the PE with most to do.

    Args:
        mesh: how the decoder is divided.
        position: tokens read before.
    """
    p, up = mesh, mesh.filter * mesh.gates
    held = position // p.height + 1  # tokens whose keys the first PE of a column has
    layer = _LAYER_CYCLES + p.features * _FEATURE_CYCLES
    sizes = (p.features, 3 * p.here), (p.here, p.features), (p.features, up), (p.filter, p.features)
    layer += sum(_product_cycles(k, n) for k, n in sizes)
    layer += p.heads * (_head_cycles(p.part, held) + p.rotary * p.part * _PAIR_CYCLES)
    along_columns = [2, 3 * p.here, p.heads, p.here + p.heads, 2, up]
    if p.activation in _ACTIVATION_CYCLES:
        number = _ACTIVATION_CYCLES[p.activation]
        layer += p.filter * _SKIPPED_CYCLES + -(-p.filter // p.height) * number
        along_columns.append(p.filter)
    last = _product_cycles(p.features, p.vocab)
    last += _CHOICE_CYCLES + -(-p.vocab // p.height) * _SCORE_CYCLES
    sums = (
        (p.height, along_columns * p.layers + [2, p.vocab, 1, 1] + [p.part] * p.rotary),
        (p.width, [p.features] * (2 * p.layers + 1) + [1, 1]),
        (min(p.team, p.width), [held] * p.layers * p.heads),
    )
    summed = sum(line_cycles(pes, np.array(words)).sum() for pes, words in sums)
    return round(_TOKEN_CYCLES + p.layers * layer + last + float(summed))
