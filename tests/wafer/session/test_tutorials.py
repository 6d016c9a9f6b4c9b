"""The vendor's first two tutorials, pre-training and fine-tuning, from beginning to end.

Their files key for key; the paths, the tokenizer's folder and the sizes are those of a small test.
"""

import json

import pytest
import yaml
from helpers.rows import rows_in
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from wafer.cli import main
from wafer.vendor.cszoo import translate

TOKENIZER = (
    "cerebras.modelzoo.data_preparation.data_preprocessing.custom_tokenizer_example."
    "CustomLlama3Tokenizer:CustomLlama3Tokenizer"
)
HOOKS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks:"
MODEL = {
    "name": "llama",
    "attention_dropout_rate": 0.0,
    "attention_module": "multiquery_attention",
    "attention_type": "scaled_dot_product",
    "dropout_rate": 0.0,
    "embedding_dropout_rate": 0.0,
    "embedding_layer_norm": False,
    "extra_attention_params": {"num_kv_groups": 1},
    "filter_size": 32,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1.0e-05,
    "loss_scaling": "num_tokens",
    "loss_weight": 1.0,
    "max_position_embeddings": 32,
    "nonlinearity": "swiglu",
    "norm_type": "rmsnorm",
    "num_heads": 2,
    "num_hidden_layers": 1,
    "pos_scaling_factor": 1.0,
    "position_embedding_type": "rotary",
    "rope_theta": 500000.0,
    "rotary_dim": 8,
    "share_embedding_weights": False,
    "use_bias_in_output": False,
    "use_ffn_bias": False,
    "use_ffn_bias_in_attention": False,
    "use_projection_bias_in_attention": False,
    "vocab_size": 258,
}
PRECISION = {
    "enabled": True,
    "fp16_type": "cbfloat16",
    "log_loss_scale": True,
    "loss_scaling_factor": "dynamic",
    "max_gradient_norm": 1.0,
}
TEXT = "What news of the fleet, my lord? None since the storm of yesterday. "


def tokenizer(folder):
    marks = ["<|begin_of_text|>", "<|eot_id|>"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [], trainers.BpeTrainer(special_tokens=marks, initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(f"{marks[0]} $A", None, [(marks[0], 0)])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    named = {"bos_token": marks[0], "eos_token": marks[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def data_file(folder, source, split, mode, hook, **columns):
    content = {
        "setup": {
            "data": {"type": "huggingface", "source": source, "split": split},
            "mode": mode,
            "output_dir": f"{folder}/{split}_data",
            "processes": 1,
        },
        "processing": {
            "custom_tokenizer": TOKENIZER,
            "tokenizer_params": {"pretrained_model_name_or_path": "llama3"},
            "write_in_batch": True,
            "read_hook": HOOKS + hook,
            "read_hook_kwargs": columns,
            "max_seq_length": 32,
            "use_ftfy": True,
        },
    }
    return written(f"{split}.yaml", content)


def model_file(folder, **fit):
    loader = {"data_processor": "GptHDF5MapDataProcessor", "num_workers": 0}
    validation = loader | {
        "batch_size": 1,
        "data_dir": f"{folder}/validation_data",
        "shuffle": False,
    }
    training = loader | {
        "batch_size": 8,
        "data_dir": f"{folder}/train_data",
        "shuffle": True,
        "shuffle_seed": 1337,
    }
    rates = {"initial_learning_rate": 5e-5, "end_learning_rate": 1e-5, "total_iters": 2}
    init = {
        "model_dir": f"{folder}/model",
        "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 1}},
        "callbacks": [{"ComputeNorm": {}}],
        "checkpoint": {"steps": 2},
        "logging": {"log_steps": 1},
        "loop": {"eval_steps": 1, "max_steps": 2},
        "model": MODEL,
        "optimizer": {"AdamW": {"betas": [0.9, 0.95], "correct_bias": True, "weight_decay": 0.01}},
        "precision": PRECISION,
        "schedulers": [{"CosineDecayLR": rates}],
        "seed": 1,
    }
    trainer = {
        "init": init,
        "fit": {"train_dataloader": training, "val_dataloader": validation} | fit,
        "validate": {"val_dataloader": validation},
        "validate_all": {"val_dataloaders": validation},
    }
    return written(f"{folder}.yaml", {"trainer": trainer})


def written(name, content):
    with open(name, "w", encoding="utf-8") as file:
        yaml.safe_dump(content, file)
    return name


def cszoo(line):
    assert main(translate(line.split())) == 0, line


def records(path, items):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


@pytest.mark.slow
def test_pretraining_then_fine_tuning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer(tmp_path / "llama3")
    pairs = [{"document": f"{i} ships.", "summary": f"{i}."} for i in range(16)]
    for split in ("train", "validation"):
        records(tmp_path / "shakespeare" / f"{split}.jsonl", [{"text": TEXT * 9}])
        records(tmp_path / "xsum" / f"{split}.jsonl", pairs)
        text = data_file(
            "pre", "shakespeare", split, "pretraining", "text_read_hook", text_key="text"
        )
        cszoo(f"data_preprocess run --config {text}")
        columns = {"prompt_key": "document", "completion_key": "summary"}
        hook = "prompt_completion_text_read_hook"
        pair = data_file("fine", "xsum", split, "finetuning", hook, **columns)
        cszoo(f"data_preprocess run --config {pair}")
    rows = rows_in("pre/train_data")
    # BOS, a token for each byte, the end mark: cut every 33 tokens
    assert rows.shape == (-(-(len((TEXT * 9).strip()) + 2) // 33), 3, 32)
    assert rows[0, 0, 0] == 0
    assert rows_in("fine/train_data").shape == (16, 3, 32)

    cszoo(f"fit {model_file('pre')}")
    there = "--model llama --src-fmt cs-auto --tgt-fmt hf --output-dir hf"
    cszoo(f"checkpoint convert {there} pre/model/checkpoints/2")
    cszoo("checkpoint convert --model llama --src-fmt hf --tgt-fmt cs-2.5 --output-dir from_hf hf")
    cszoo(f"fit {model_file('fine', ckpt_path='from_hf/pytorch_model_to_cs-2.5.mdl')}")
    assert (tmp_path / "fine" / "model" / "checkpoints" / "2").is_dir()
