"""Files of input records in every format."""

import gzip
import io
import json
import tarfile

from wafer.data.preprocess.records import TEXT, RecordPosition, batches

TEXTS = ["a b c", "d e", "f g h a b"]


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def write(path, records):
    """Records in the format of the file's ending."""
    data, name = lines(records), path.name
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if ".zst" in name:
        import zstandard

        if name.endswith(".tar"):
            whole = io.BytesIO()
            with tarfile.open(fileobj=whole, mode="w") as archive:
                info = tarfile.TarInfo("part.jsonl")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            data = whole.getvalue()
        half = len(data) // 2  # two frames, as concatenated files have
        data = b"".join(zstandard.ZstdCompressor().compress(d) for d in (data[:half], data[half:]))
    if name.endswith((".parquet", ".arrow")):
        return _write_table(path, records)
    path.write_bytes(data)
    return path


def _write_table(path, records):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(records)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=2)
        return path
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def texts_of(paths, start=RecordPosition(), **kwargs):  # noqa: B008
    return [r.values[0] for batch in batches(paths, TEXT, start, **kwargs) for r in batch.records]
