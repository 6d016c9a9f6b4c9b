"""Keys of preprocessing files: without effect here, refused, and those with another name here."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

from wafer.data.preprocess.settings import Mode, Text
from wafer.models.sections import Section

RELEASES = ("2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10")
"""Those whose files have a read hook."""
GROUPS = ("setup", "processing", "dataset")
OlderMode = Literal[
    "LMData", "LMData_VSL", "Summarization", "Summarization_VSL", "FIM", "MLM", "MLM_NSP", "T5"
]
MODES: tuple[str, ...] = (*get_args(OlderMode), *get_args(Mode))
"""Of files of either form."""
SPELLINGS = {"max_sequence_length": "max_seq_length", "ftfy": "use_ftfy"}
"""Another name of a key -> the key."""
_IDLE = {  # why they change nothing here -> keys
    "has no effect there either": "write_in_batch max_chunk_size drop_input loss_mask_weight",
    "files_per_record is the size of a file here": "write_chunk_size",
    "one batch for each process is in memory": "fraction_of_RAM_alloted",
    "skip_bad_records leaves out bad records here": "UNSAFE_skip_jsonl_decoding_errors",
    "long documents are cut from release 2.4 on": "fold_long_doc",
    "rows are int32": "position_ids_dtype input_ids_dtype input_mask_dtype",
    "the roles are user and assistant": "user_role assistant_role",
    "custom_tokenizer or huggingface_tokenizer names the tokenizer": "tokenizer_type",
    "stands under tokenizer_params": "vocab_file encoder_file",
    "parts are made without copies of the texts": "data_splits_dir",
    "give shard: I/N on each machine": "num_nodes rank",
    "give shard: slurm in a job of an array": "slurm",
    "nothing is downloaded": "auth_token",
    "stands under read_hook_kwargs": "data_keys",
    "fim_suffix_tok names the mark": "fim_suffix_tok_id",
    "a chat_template does it": "eos_after_prompt prompt_prefix completion_prefix",
    "read_hook_kwargs names the columns": (
        "jsonl_key prompt_key completion_key multi_turn_key multi_turn_content_key "
        "multi_turn_role_key"
    ),
    "mode names the rows": "module dataset_processor",
    "is for rows of images": "system_prompt_style",
}
NO_EFFECT = {key: why for why, keys in _IDLE.items() for key in keys.split()}
"""Key -> why it changes nothing here."""
REFUSED = {
    "token_generator": "the vendor's generator classes cannot be run here; write a read_hook, or "
    "make the rows with wafer.data.preprocess.convert.convert_dataset_to_hdf5",
}
"""Key -> why it is refused and what to use."""
_OLDER = (
    "input_dir metadata_files output_dir output_name processes files_per_record compression "
    "write_remainder resume_from_checkpoint encode_special_tokens skip_bad_records display_pbar "
    "split shard shards seed huggingface_tokenizer eos_id pad_id max_seq_length short_seq_prob "
    "min_sequence_len ftfy_normalizer wikitext_detokenize fim_rate spm_rate fim_prefix_tok "
    "fim_middle_tok fim_suffix_tok data_format tokenizer_type vocab_file encoder_file vocab_size "
    "do_lower pack_sequences fold_long_doc sep_token context_separator prompt_prefix "
    "completion_prefix eos_after_prompt use_ftfy tgt_max_sequence_length extra_ids noise_density "
    "inverted_mask mean_noise_span_length"
)
OLDER = frozenset(_OLDER.split())
"""Settings that an older file may give."""
_OLDER_ALONE = (
    "data_format vocab_size do_lower context_separator tgt_max_sequence_length extra_ids "
    "noise_density mean_noise_span_length contexts_key"
)
OLDER_ALONE = frozenset(_OLDER_ALONE.split())
"""Keys that files with a read hook do not have."""


def _release(value: object) -> str | None:
    """A release without its last number; 2.1 is how YAML reads 2.10, and had no such files."""
    if value is None:
        return None
    parts = str(value).removeprefix("Release_").split(".")
    release = ".".join(parts[:2])
    release = "2.10" if release == "2.1" else release
    if release not in RELEASES:
        raise ValueError(f"no release with such files; known: {', '.join(RELEASES)}")
    return release


class TokenizerParams(Section):
    """``tokenizer_params`` of the vendor's tokenizers."""

    encoder_file: Text | None = None  #: gpt2tokenizer, neoxtokenizer
    vocab_file: Text | None = None  #: gpt2tokenizer
    pretrained_model_name_or_path: Text | None = None  #: CustomLlama3Tokenizer
    token: Any = None  #: no effect, as the others below: nothing is downloaded
    cache_dir: Any = None
    force_download: Any = None
    local_files_only: Any = None
    proxies: Any = None
    revision: Any = None
    trust_remote_code: Any = None
    use_auth_token: Any = None
    use_fast: Any = None


class HookKeys(Section):
    """Keys of files with a read hook that have another name here."""

    #: the vendor's own rows of this release, also where they lose text
    release: Annotated[str | None, BeforeValidator(_release)] = None
    #: gpt2tokenizer, neoxtokenizer, or the vendor's CustomLlama3Tokenizer
    custom_tokenizer: str | None = None
    #: encoder_file, vocab_file, pretrained_model_name_or_path
    tokenizer_params: TokenizerParams = TokenizerParams()


class OlderKeys(Section):
    """Keys of older files that have another name here."""

    mode: OlderMode = "LMData"  #: what the rows are for
    jsonl_key: Text = "text"  #: field or column with the text
    prompt_key: Text = "prompt"  #: field with the prompt
    completion_key: Text = "completion"  #: field with the completion
    #: field with a conversation, instead of prompt and completion (messages)
    multi_turn_key: Text | None = None
    multi_turn_content_key: Text = "content"  #: where a turn holds its text
    multi_turn_role_key: Text = "role"  #: where a turn says who speaks
    #: field with retrieved contexts, which go before the prompt while they fit
    contexts_key: Text | None = None
