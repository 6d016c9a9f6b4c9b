"""Encoder heads, encoder-decoders, FC-MNIST, LLaVA and adapters: losses, training, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.batches import packed, trained
from helpers.hf_parity import CHEAP

from wafer import models, vsl
from wafer.models.factored.lora import fold, init_lora, merge, trainable
from wafer.models.families.encoder_heads import contrastive_aux
from wafer.models.families.fc_mnist import image_batch
from wafer.models.layers.block_config import LoraConfig
from wafer.models.paths import named_leaves

ENCODER = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 4}
ENCODER |= {"filter_size": 24, "max_position_embeddings": 16, "dropout_rate": 0.0}


quick = functools.partial(jax.jit, compiler_options=CHEAP)


def stream(**extras):
    return packed([*range(7, 15), 0, 0], [5, 3], **extras)


HEADS = {
    "bert": {"next_sentence_label": [0, 1]},
    "bert-sequence-classifier": {"class_labels": [1, 0]},
    "bert-token-classifier": {},
    "bert-q&a": {"start_positions": [1, 0], "end_positions": [2, 2]},
    "bert-summarization": {
        "masked_positions": [0, 3, 5],
        "masked_labels": [1.0, 0.0, 1.0],
        "masked_weights": [1.0, 1.0, 1.0],
    },
}


@pytest.mark.parametrize(
    "name", [n if n == "bert-q&a" else pytest.param(n, marks=pytest.mark.slow) for n in HEADS]
)
def test_every_head_learns_its_own_labels(name):
    settings = ENCODER | {"name": name}
    if name == "bert-token-classifier":
        settings["num_labels"] = 31
    model = models.build(settings)
    params = model.init(jax.random.key(0))
    _, losses, values = trained(model, params, stream(**HEADS[name]), optax.adam(3e-2), 40)
    assert losses[-1] < 0.2 * losses[0]
    found = [values.get(metric, 0) for metric in ("accuracy", "exact_span", "mlm/accuracy")]
    assert max(found) == 1


def test_gathered_positions_score_like_all_of_them():
    model = models.build(ENCODER | {"name": "bert", "disable_nsp": True})
    params = model.init(jax.random.key(0))
    batch = stream()
    weights = jnp.zeros(10).at[jnp.asarray([1, 6])].set(1.0)
    loss = quick(model.loss)
    everywhere = loss(params, batch._replace(weights=weights))[0]
    gathered = stream(
        masked_positions=[1, 6, 0], masked_labels=[8, 13, 0], masked_weights=[1.0, 1.0, 0.0]
    )
    np.testing.assert_allclose(loss(params, gathered)[0], everywhere, rtol=1e-6)


def test_an_untied_masked_language_model_scores_by_weights_of_its_own():
    tied = models.build(ENCODER | {"name": "bert", "head": "mlm"})
    own = models.build(ENCODER | {"name": "bert", "head": "mlm", "share_embedding_weights": False})
    params = tied.init(jax.random.key(0))
    drawn = own.init(jax.random.key(0))["lm_head"]["kernel"]
    table = params["embed"]["token"]["embedding"]
    assert drawn.shape == table.T.shape
    untied = {**params, "lm_head": {"kernel": table.T}}
    logits = tied.apply(params, stream())["logits"]
    np.testing.assert_allclose(own.apply(untied, stream())["logits"], logits, atol=1e-6)


def test_encoder_errors():
    model = models.build(ENCODER | {"name": "dpr-question-encoder"})
    with pytest.raises(ValueError, match="has no loss of its own"):
        model.loss(model.init(jax.random.key(0)), stream())


def test_in_batch_negatives_by_hand():
    questions, contexts = jnp.eye(2), 2 * jnp.eye(2)
    aux = contrastive_aux(questions, contexts, jnp.asarray([0, 1]))
    assert float(aux.loss_sum / aux.weight) == pytest.approx(np.log(1 + np.exp(-2)))
    assert float(aux.metrics["accuracy_sum"]) == 2


@pytest.mark.slow
def test_vocabularies_may_differ_when_tables_are_not_shared():
    settings = {"name": "transformer", "hidden_size": 8, "filter_size": 8, "num_heads": 2}
    settings |= {"vocab_size": 11, "tgt_vocab_size": 13, "share_encoder_decoder_embedding": False}
    model = models.build(settings | {"num_hidden_layers": 1, "dropout_rate": 0.0})
    params = model.init(jax.random.key(0))
    batch = stream(source_tokens=[1, 2, 3])
    layout = vsl.layout_from_lengths(jnp.asarray([2, 1]), 3)
    batch = batch._replace(extras={**batch.extras, "source_layout": layout})
    assert jax.eval_shape(model.apply, params, batch).shape == (10, 13)


def test_digits_are_learned_by_the_first_example():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = jnp.asarray(digits.data / 16.0, jnp.float32)
    labels = jnp.asarray(digits.target, jnp.int32)
    model = models.build({"name": "fc_mnist", "input_size": 64, "hidden_size": 32, "depth": 2})
    params = model.init(jax.random.key(0))
    rows = image_batch(images[:1500], labels[:1500])
    params, _, _ = trained(model, params, rows, optax.adam(1e-2), 80)
    aux = quick(model.loss)(params, image_batch(images[1500:], labels[1500:]))[1]
    assert models.metric_values(aux.metrics)["accuracy"] > 0.85  # held out; chance is 0.1


def test_adapters_start_as_nothing_train_alone_and_fold_back():
    model = models.build(ENCODER | {"name": "gpt2"})
    params = model.init(jax.random.key(0))
    cfg = LoraConfig(r=2, alpha=4.0, target_modules=("attn/query", "ffn/up"))
    lora = init_lora(cfg, params, jax.random.key(1))
    batch = stream()
    score = quick(model.loss)
    base = score(params, batch)[0]

    @quick
    def loss(params, lora):
        return model.loss(merge(cfg, params, lora), batch)[0]

    @quick
    def gradients(params, lora):
        adapted = lambda p, a: model.loss(merge(cfg, p, a), batch)[0]
        return jax.grad(adapted, argnums=(0, 1))(params, lora)

    np.testing.assert_allclose(loss(params, lora), base, rtol=1e-6)
    frozen, learned = gradients(params, lora)
    assert all(float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(frozen))
    assert float(jnp.abs(learned.up["layers_0/attn/query/kernel"]).max()) > 0
    assert set(lora.down) == {"layers_0/attn/query/kernel", "layers_0/ffn/up/kernel"}

    trained = lora._replace(up=jax.tree.map(lambda g: -g, learned.up))
    folded = score(fold(cfg, params, trained), batch)[0]
    np.testing.assert_allclose(folded, loss(params, trained), rtol=1e-5)
    assert float(folded) < float(base)


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (("attn/qury",), r"'attn/qury' matches no parameter; did you mean 'attn/query'\?"),
        (("attn/query", "fnn/up"), r"'fnn/up' .* did you mean 'ffn/up'\?"),  # each must match
        (("attn/query", "Linear"), r"'Linear' matches no parameter; the model has such as lay"),
        (("MultiheadAttention", "FeedForwardNetwork"), "match no kernel"),
        (("attn/query", ""), "'' matches every name; expected a part of names"),
    ],
)
def test_targets_of_adapters_that_match_nothing_are_named(targets, says):
    params = models.build(ENCODER | {"name": "gpt2"}).init(jax.random.key(0))
    with pytest.raises(ValueError, match=rf"lora_params\.target_modules: .*{says}"):
        init_lora(LoraConfig(r=2, target_modules=targets), params, jax.random.key(0))


def test_targets_of_adapters_may_be_all_kernels_or_the_default():
    params = models.build(ENCODER | {"name": "gpt2"}).init(jax.random.key(0))
    kernels = {name for name, _ in named_leaves(params) if name.endswith("/kernel")}
    draw = lambda cfg, tree: set(init_lora(cfg, tree, jax.random.key(0)).down)
    assert draw(LoraConfig(r=2, target_modules=()), params) == kernels
    only = {"attn": {"query": params["layers_0"]["attn"]["query"]}}
    assert draw(LoraConfig(r=2), only) == {"attn/query/kernel"}  # the user has named no value


LLAVA = {
    "name": "llava",
    "image_token_index": 30,
    "image_model": {
        **{k: v for k, v in ENCODER.items() if k not in {"vocab_size", "max_position_embeddings"}},
        "image_size": 4,
        "patch_size": 2,
        "num_hidden_layers": 2,
    },
    "text_model": {"name": "llama", **ENCODER},
    "freeze": ["^image_model"],
}


def test_images_fill_the_image_slots_and_freeze():
    model = models.build(LLAVA)
    params = model.init(jax.random.key(0))
    ids = jnp.asarray([1, 30, 30, 30, 30, 2])
    layout = vsl.layout_from_lengths(jnp.asarray([6]), 6)
    pixels = jax.random.normal(jax.random.key(1), (1, 3, 4, 4))
    batch = models.Batch(ids, ids, jnp.ones(6), layout, {"pixel_values": pixels})
    other = batch._replace(extras={"pixel_values": pixels.at[0, 0, 3, 3].add(1.0)})
    apply = quick(model.apply)
    a, b = apply(params, batch), apply(params, other)
    np.testing.assert_array_equal(a[0], b[0])  # before the image
    assert float(jnp.abs(a[5] - b[5]).max()) > 1e-6  # after it

    mask = dict(named_leaves(trainable(model, params)))
    assert not any(trains for name, trains in mask.items() if name.startswith("image_"))
    assert all(trains for name, trains in mask.items() if not name.startswith("image_"))
    both = ["^image_model", "^txt_model"]  # each must match
    with pytest.raises(ValueError, match=r"freeze: '\^txt_model' .* did you mean 'text_model'\?"):
        trainable(models.build(LLAVA | {"freeze": both}), params)
    with pytest.raises(ValueError, match="freeze: '' matches every name"):
        trainable(models.build(LLAVA | {"freeze": [""]}), params)
