"""The corpus tool counts files by release and family, and reads what `wafer run` reads."""

import subprocess

import pytest
import vendor_corpus

FILE = """
train_input: {data_processor: SyntheticDataProcessor, vocab_size: 64, max_sequence_length: 8,
  batch_size: 2}
model: {vocab_size: 64, hidden_size: 8, num_heads: 2, num_hidden_layers: 1, filter_size: 8,
  max_position_embeddings: 8}
optimizer: {optimizer_type: SGD, learning_rate: 1e-3}
runconfig: {max_steps: 1}
"""


@pytest.fixture
def zoo(tmp_path):
    git = lambda *args: subprocess.run(["git", "-C", tmp_path, *args], check=True)
    files = {
        "modelzoo/gpt2/configs/params.yaml": FILE,
        "modelzoo/gpt2/configs/params_wrong.yaml": FILE + "no_section: 1\n",
        "modelzoo/dit/configs/params.yaml": FILE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    git("tag", "Release_2.0.2")
    return tmp_path


def test_files_are_counted_by_family_and_release(zoo):
    found = {file.path.split("/")[-1]: file for file in vendor_corpus.files(zoo) if file.family}
    assert sorted(found) == ["params.yaml", "params_wrong.yaml"]
    assert {(file.family, file.release) for file in found.values()} == {("gpt2", (2, 0))}


def test_what_is_converted_is_accepted_by_a_run(zoo, capsys):
    """A file that no run accepts is not written: here the section that nobody knows."""
    assert vendor_corpus.convert_all(zoo, "") == 0
    assert "2 files, 1 converted, 0 of them refused" in capsys.readouterr().out
    long = FILE.replace("max_sequence_length: 8", "max_sequence_length: 9")
    assert vendor_corpus.converted(long, "gpt2", (2, 0)) == ""


def test_a_file_gets_the_name_of_its_folder_and_problems_have_their_key():
    assert vendor_corpus.problems_of(FILE, "gpt2") == []
    ((key, message),) = vendor_corpus.problems_of(FILE + "no_section: 1\n", "gpt2")
    assert key == "no_section"
    assert "unknown section" in message
