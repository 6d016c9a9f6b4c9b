"""What is attacked: for each area, files to try (name, bytes, check or None) and their reader."""

from fuzz import checkpointfiles, hdf5files, sequencefiles, textfiles, weightfiles

AREAS = {
    "bin": (weightfiles.torch_files, weightfiles.read_all),
    "safetensors": (weightfiles.safetensors_files, weightfiles.read_all),
    "json": (weightfiles.json_files, weightfiles.read_json_file),
    "checkpoint": (checkpointfiles.checkpoint_files, checkpointfiles.read_checkpoint),
    "mdl": (hdf5files.mdl_files, hdf5files.read_mdl),
    "lines": (textfiles.line_files, textfiles.read_lines),
    "tokenizer": (textfiles.tokenizer_files, textfiles.read_tokenizer),
    "fasta": (sequencefiles.fasta_files, sequencefiles.read_sequences),
    "segments": (sequencefiles.segment_files, sequencefiles.read_states),
    "table": (sequencefiles.table_files, sequencefiles.read_table),
    "rows": (hdf5files.row_files, hdf5files.read_rows),
}
