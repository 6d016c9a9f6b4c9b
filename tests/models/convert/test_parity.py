"""Logits, hidden states, loss, gradients and greedy tokens against transformers, per family."""

import pytest
from helpers import hf_parity

from wafer import models

TOLERANCE = 5e-6  # of the largest reference value; the smallest plausible bug shows 1e-5
QUICK = {"bert_pretraining", "bloom_postln_residual", "btlm_ref", "codegen", "dpr_reader"}
QUICK |= {"falcon_rw_alibi_bias_seq", "gpt2_headless", "gpt_neox", "gptj_headless"}
QUICK |= {"llama31_rope", "mixtral", "mpt_clip_scale", "t5_relu_tied"}
QUICK |= {"gemma3_text", "olmo2_gqa", "qwen3_moe"}
CASES = hf_parity.cases()


def _marked(name):
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [_marked(n) for n in CASES])
def test_matches_transformers(name):
    result = hf_parity.compare(CASES[name])

    assert result.pop("greedy", True), "the greedy continuation differs"
    checked = 0
    for run, errors in result.items():
        loss, grads = errors.pop("loss", 0.0), errors.pop("grad_norm", 0.0)
        assert loss <= 2e-6, f"{run}: loss differs by {loss}"
        assert grads <= 1e-5, f"{run}: a gradient norm differs by {grads}"
        assert errors.pop("global_norm", 0.0) <= 1e-5
        assert errors.pop("grads_checked", 1) > 0
        for output, error in errors.items():
            assert error <= TOLERANCE, f"{run}/{output}: {error}"
            checked += 1
    assert checked >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CASES if "greedy" in hf_parity.meta(CASES[n])])
def test_cached_generation_gives_the_recorded_tokens(name):
    model, params, meta, _ = hf_parity.load(CASES[name])
    ours, recorded = hf_parity.greedy_tokens(model, params, meta)
    assert ours == recorded


@pytest.mark.parametrize("name", sorted(CASES))
def test_round_trip_is_bit_equal(name, tmp_path):
    assert hf_parity.round_trip(CASES[name], tmp_path) == []
    read, written = (models.from_hf(path, dtype=None)[0].config for path in (CASES[name], tmp_path))
    assert written == read
