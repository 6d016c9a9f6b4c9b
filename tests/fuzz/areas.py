"""What is attacked: for each area, files to try (name, bytes, check or None) and their reader."""

from fuzz import hdf5files, weightfiles

AREAS = {
    "bin": (weightfiles.torch_files, weightfiles.read_all),
    "safetensors": (weightfiles.safetensors_files, weightfiles.read_all),
    "json": (weightfiles.json_files, weightfiles.read_json_file),
    "mdl": (hdf5files.mdl_files, hdf5files.read_mdl),
    "rows": (hdf5files.row_files, hdf5files.read_rows),
}
