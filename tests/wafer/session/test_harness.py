"""Tasks of the EleutherAI harness: what it is told of a model; with the package, whole tasks."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.runs import config, write_yaml

import wafer
from wafer import models
from wafer.commands.checkpoints.evaluate import TaskScores
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.config.runconfig import EleutherEvalHarness
from wafer.data.text.tokenizer import train_bpe
from wafer.errors import ConfigError, DataError
from wafer.session.harness.tasks import task_metrics, unchanged
from wafer.session.harness.texts import TaskModel
from wafer.session.metrics import read_metrics

TEXTS = ["the cat sat on the mat and the dog on the log. " * 30] * 4
SIZE = 280
ARGS = {"eeh_args": {"tasks": ["cloze"]}, "batch_size": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a small GPT-2 with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    section = {"name": "gpt2", "vocab_size": SIZE, "hidden_size": 16, "num_hidden_layers": 1}
    section |= {"num_heads": 2, "filter_size": 32, "max_position_embeddings": 32}
    model = models.build(section)
    params = jax.tree.map(lambda leaf: 5 * leaf, model.init(jax.random.key(0)))
    train_bpe(TEXTS, SIZE).save(str(folder / "tokenizer.json"))
    models.to_hf(model, params, folder / "hf", text_from=folder)
    return folder / "hf"


def opened(folder, **keys):
    model, params = models.from_hf(folder)
    return TaskModel(model, params, folder, EleutherEvalHarness(**ARGS | keys))


def test_special_tokens_follow_the_tokenizers_rule(folder):
    texts = opened(folder)
    assert texts.ends == (texts.begin,) == (0,)
    ids = texts.encode("the cat")
    assert ids == texts.encode("the cat", special=False)
    assert texts.decode(ids) == "the cat"
    assert texts.encode("<|endoftext|>the cat") == [0, *ids]
    assert texts.decode([0, *ids]) == "the cat"
    texts._put_first = True  # add_bos_token of tokenizer_config.json
    assert texts.encode("the cat") == texts.encode("<|endoftext|>the cat") == [0, *ids]
    assert texts.encode("the cat", special=False) == ids


def test_an_empty_context_is_the_tokenizers_own_token(folder, tmp_path):
    """As in Qwen 3: ``bos_token`` null, ``eos_token`` another than config.json's bos_token_id."""
    shutil.copytree(folder, tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer_config.json"
    content = json.loads(path.read_text()) | {"bos_token": None, "eos_token": "e"}
    path.write_text(json.dumps(content))
    texts = opened(tmp_path / "hf")
    assert texts.begin == texts.encode("e", special=False)[0] != 0
    assert texts.ends == (0,)


def test_answers_are_greedy_and_end_before_their_stops(folder):
    texts = opened(folder)
    prompts = ["the cat", "the dog sat on the log. " * 9, "on the mat and"]
    keys = {"max_gen_toks": 6, "do_sample": False}
    found = texts.answers([(prompt, keys) for prompt in prompts])
    rows = [texts.encode(prompt)[-26:] for prompt in prompts]  # 32 positions
    filled, lengths = [row + [1] * (26 - len(row)) for row in rows], [*map(len, rows)]
    for text, *own in zip(found, rows, filled, lengths, strict=True):
        row, prompt, length = own
        options = {"lengths": [length] * 2, "end_id": 0}
        blocks = models.generate_stream(texts.model, texts._params, [prompt] * 2, 6, **options)
        ids = np.concatenate(list(blocks), axis=1)[0].tolist()
        assert text == texts.decode([i for i in ids if i])
        assert texts.likelihoods([(row, ids)])[0].greedy
    keys["until"] = [found[0][1:3]]
    cut = texts.answers([(prompts[0], keys), (prompts[2], keys)])
    assert cut[0] == found[0].partition(found[0][1:3])[0]


def test_sampled_answers_depend_on_the_seed_alone(folder):
    keys = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0, "top_k": 50}
    sampled = lambda seed: opened(folder, seed=seed).answers([("the cat", keys)] * 2)
    assert sampled(1) == sampled(1) != sampled(2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"num_beams": 2}, "num_beams is not known"), ({"max_gen_toks": 32}, "fewer than the 32")],
)
def test_what_cannot_be_generated_is_refused(folder, keys, message):
    with pytest.raises(ValueError, match=message):
        opened(folder).answers([("the cat", keys)])


def test_kept_values_give_the_numbers_of_dense_weights(folder):
    model, params = models.from_hf(folder)
    prune = lambda leaf: np.where(abs(leaf) > np.quantile(abs(leaf), 0.8), leaf, 0)
    params = jax.tree.map(lambda leaf: prune(leaf) if leaf.ndim == 2 else leaf, params)
    options = EleutherEvalHarness(**ARGS)
    auto, dense = (TaskModel(model, params, folder, options, k) for k in ("auto", "dense"))
    requests = [(auto.encode("the cat sat"), auto.encode(word)) for word in (" on", " the log")]
    pairs = zip(auto.likelihoods(requests), dense.likelihoods(requests), strict=True)
    for own, other in pairs:
        assert own.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert own.greedy == other.greedy


def test_a_model_without_a_tokenizer_or_with_more_positions_is_refused(folder, tmp_path):
    model, params = models.from_hf(folder)
    with pytest.raises(DataError, match=r"no tokenizer.json in .* tokenizer_file_path"):
        TaskModel(model, params, tmp_path / "a", EleutherEvalHarness(**ARGS))
    with pytest.raises(ValueError, match="33; expected at most the model's 32 positions"):
        opened(folder, max_sequence_length=33)


RECORD = {"results": {"cloze": {"alias": "cloze", "acc,none": 0.5, "acc_stderr,none": 0.25}}}
RECORD["results"]["cloze"] |= {"exact_match,strict": 1, "exact_match_stderr,strict": "N/A"}


def test_metrics_of_a_record_and_how_they_show(tmp_path):
    found = task_metrics(RECORD)
    assert found == {"cloze": {"acc": 0.5, "acc_stderr": 0.25, "exact_match,strict": 1.0}}
    scores = TaskScores(found, RECORD, 2.0)
    lines = [line.split() for line in repr(scores).splitlines()]
    assert lines == [
        ["cloze", "acc", "0.5", "±", "0.25"],
        ["cloze", "exact_match,strict", "1"],
        ["2.0", "s"],
    ]
    assert "<td>0.25</td>" in scores._repr_html_()
    scores.write(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == RECORD


def test_a_run_evaluates_tasks_when_they_are_due(tmp_path, monkeypatch):
    """Evaluations 0, 1 and 2 of steps 0, 2 and 4; tasks in every second one."""
    monkeypatch.setattr("wafer.session.harness.tasks.run_tasks", lambda texts, tasks: RECORD)
    train_bpe(TEXTS, SIZE).save(str(tmp_path / "tokenizer.json"))
    own = {"eeh_args": {"tasks": "cloze, other"}, "every_n_vals": 2, "eos_id": 0}
    own["tokenizer_file_path"] = str(tmp_path / "tokenizer.json")
    keys = {"mode": "train_and_eval", "eval_frequency": 2, "model_dir": str(tmp_path / "run")}
    cfg = config(runconfig=keys | {"eleuther_eval_harness": own})
    assert parse_config(cfg).runconfig.eleuther_eval_harness.eeh_args.tasks == ("cloze", "other")
    assert run(parse_config(cfg)) == 0
    records = read_metrics(tmp_path / "run" / "eval")
    assert [record["step"] for record in records] == [0, 2, 4]
    assert [record.get("eval/cloze/acc") for record in records] == [0.5, None, 0.5]


def test_options_of_the_command_win_over_a_run_file(folder, tmp_path, monkeypatch, cli):
    seen = []
    record = lambda texts, tasks: seen.append((texts, tasks)) or RECORD
    monkeypatch.setattr("wafer.session.harness.tasks.run_tasks", record)
    own = {"eeh_args": {"tasks": "a", "num_fewshot": 2}, "max_sequence_length": 16}
    keys = {"checkpoint_path": str(folder), "eleuther_eval_harness": own}
    file = write_yaml(tmp_path / "run.yaml", config(runconfig=keys))
    cli(f"evaluate -p {file} -t b,c -L 3 --max_tokens 5 -o {tmp_path}/scores.json")
    ((texts, tasks),) = seen
    assert texts.longest == 16
    assert (tasks.tasks, tasks.num_fewshot, tasks.limit, tasks.max_tokens) == (("b", "c"), 2, 3, 5)
    assert json.loads((tmp_path / "scores.json").read_text()) == RECORD


def test_a_training_without_evaluations_warns_of_tasks(tmp_path, caplog):
    keys = {"model_dir": str(tmp_path), "max_steps": 1, "eleuther_eval_harness": ARGS}
    run(parse_config(config(runconfig=keys)))
    assert "eleuther_eval_harness: mode train has no evaluation" in caplog.text


def test_an_unknown_key_is_refused_by_its_path(folder):
    with pytest.raises(ConfigError, match=r"eleuther_eval_harness\.eeh_args\.task"):
        parse_config(config(runconfig={"eleuther_eval_harness": {"eeh_args": {"task": "a"}}}))
    with pytest.raises(ValueError, match="limits"):
        wafer.evaluate_tasks(folder, ["cloze"], limits=2)


def test_git_is_asked_for_a_commit_in_a_repository_alone(tmp_path, monkeypatch):
    evaluator = SimpleNamespace(get_git_commit_hash=lambda: "abc")
    commits = []
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / "below").mkdir()
    for folder in (tmp_path, tmp_path / "repository" / "below"):
        monkeypatch.chdir(folder)
        with unchanged(evaluator):
            commits.append(evaluator.get_git_commit_hash())
    assert [*commits, evaluator.get_git_commit_hash()] == [None, "abc", "abc"]


def test_tasks_of_a_local_folder(folder, tmp_path, monkeypatch, capfd):
    """With the harness: the accuracy of its record is that of the likelihoods."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("lm_eval.evaluator", reason="needs the extra harness")
    rows = [{"text": "the cat sat on", "answer": i % 2} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "cloze.yaml").write_text(
        f"task: cloze\ndataset_path: json\noutput_type: multiple_choice\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        "doc_to_text: '{{text}}'\ndoc_to_target: answer\ndoc_to_choice: [the mat, a log]\n"
        "metric_list: [{metric: acc}]\n"
    )
    scores = wafer.evaluate_tasks(folder, ["cloze"], include_path=str(tmp_path))
    assert scores.results["cloze"]["acc"] == 0.5  # one answer for all, right in half of the rows
    assert scores.record["n-samples"]["cloze"] == {"original": 4, "effective": 4}
    assert scores.record["git_hash"] is None
    assert "not a git repository" not in capfd.readouterr().err
    with pytest.raises(DataError, match="'clozes' is not known; did you mean 'cloze'"):
        wafer.evaluate_tasks(folder, ["clozes"], include_path=str(tmp_path))
