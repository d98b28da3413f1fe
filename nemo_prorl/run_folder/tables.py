"""Parquet files of a run: complete or absent, with checksums, so that a flipped byte is noticed where they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_prorl.run_folder.storage import replacing_file


def write_rows(file: Path, rows: list[dict[str, Any]], schema: Any = None) -> None:
    """Writes the rows into a file that is complete or absent; without rows none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if rows:
        with replacing_file(file) as aside:
            table = pa.Table.from_pylist(rows, schema)
            pq.write_table(table, aside, compression="zstd", write_page_checksum=True)


def read_table(path: Path, **options: Any) -> Any:
    """Returns the pyarrow.Table in the file; options: as of pyarrow.parquet.read_table. Raises OSError for a byte that
    was not written so; a file of earlier commits has no checksums."""
    import pyarrow.parquet as pq

    return pq.read_table(path, page_checksum_verification=True, **options)
