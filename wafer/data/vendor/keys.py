"""The vendor's keys that change nothing here, and those that are refused, each with the reason."""

__all__ = ["GROUPS", "NO_EFFECT", "REFUSED"]

GROUPS = ("setup", "processing", "dataset")
NO_EFFECT = {
    "write_in_batch": "has no effect there either",
    "write_chunk_size": "files_per_record is the size of a file here",
    "max_chunk_size": "has no effect there either",
    "fraction_of_RAM_alloted": "one batch for each process is in memory",
    "UNSAFE_skip_jsonl_decoding_errors": "skip_bad_records leaves out bad records here",
    "fold_long_doc": "long documents are cut from release 2.4 on",
    "position_ids_dtype": "rows are int32",
    "input_ids_dtype": "rows are int32",
    "input_mask_dtype": "rows are int32",
    "user_role": "the roles are user and assistant",
    "assistant_role": "the roles are user and assistant",
    "semantic_attention_mask": "is for rows of images",
    "image_dir": "is for rows of images",
    "image_token": "is for rows of images",
    "num_patches": "is for rows of images",
    "max_num_img": "is for rows of images",
    "register_special_image_token": "is for rows of images",
    "use_single_image_token": "is for rows of images",
    "multimodal": "has no effect there either",
    "tokenizer_type": "custom_tokenizer or huggingface_tokenizer names the tokenizer",
    "vocab_file": "stands under tokenizer_params",
    "encoder_file": "stands under tokenizer_params",
    "data_splits_dir": "parts are made without copies of the texts",
    "num_nodes": "one machine reads all of the input",
    "rank": "one machine reads all of the input",
    "slurm": "processes of one machine do the work",
    "auth_token": "nothing is downloaded",
    "drop_input": "has no effect there either",
    "loss_mask_weight": "has no effect there either",
    "data_keys": "stands under read_hook_kwargs",
    "fim_suffix_tok_id": "fim_suffix_tok names the mark",
    "eos_after_prompt": "a chat_template does it",
    "prompt_prefix": "a chat_template does it",
    "completion_prefix": "a chat_template does it",
    "jsonl_key": "read_hook_kwargs names the columns",
    "prompt_key": "read_hook_kwargs names the columns",
    "completion_key": "read_hook_kwargs names the columns",
    "multi_turn_key": "read_hook_kwargs names the columns",
    "multi_turn_content_key": "read_hook_kwargs names the columns",
    "multi_turn_role_key": "read_hook_kwargs names the columns",
    "module": "mode names the rows",
    "dataset_processor": "mode names the rows",
    "system_prompt_style": "is for rows of images",
}
"""Key -> why it changes nothing here."""
REFUSED = {
    "is_multimodal": "rows of images and texts are not made here; train LLaVA with "
    "LlavaHDF5MapDataProcessor on rows that the vendor's tool wrote",
    "token_generator": "the vendor's generator classes cannot be run here; write a read_hook, or "
    "make the rows with wafer.data.preprocess.convert.convert_dataset_to_hdf5",
}
"""Key -> why it is refused and what to use."""
