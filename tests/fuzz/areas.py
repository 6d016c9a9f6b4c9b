"""What is attacked: files of each area with their reader, and calls."""

from fuzz import checkpointfiles, cslcalls, hdf5files, sequencefiles, textfiles, weightfiles

# Area -> files to try (name, bytes, check or None), and their reader.
FILES = {
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
# Area -> calls with wrong arguments of the machine's native library.
CALLS = {"images": cslcalls.image_calls, "machine": cslcalls.method_calls}
