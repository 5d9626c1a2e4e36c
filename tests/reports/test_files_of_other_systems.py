"""Files as other systems write them: line ends of old Macs, UTF-16, gzip by content."""

from __future__ import annotations

import gzip

import pytest

import crossknn as ck

LINES = {
    "jsonl": '{"id": "d1", "text": "a tree"}\n{"id": "d2", "text": "the sea"}\n',
    "csv": 'id,text\nd1,a tree\n"d2",the sea\n',
    "tsv": "id\ttext\nd1\ta tree\nd2\tthe sea\n",
    "txt": "a tree\nthe sea\n",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["Unix", "Windows", "old Mac"])
@pytest.mark.parametrize("ending", LINES)
def test_line_ends(tmp_path, ending, end):
    """Whatever ends the lines, with a byte order mark or without, the texts are the same two."""
    for mark in ("", "\ufeff"):
        path = tmp_path / f"docs.{ending}"
        path.write_bytes((mark + LINES[ending].replace("\n", end)).encode())
        assert [*ck.read_items(path).texts] == ["a tree", "the sea"]
        assert ck.read_queries(path).texts == ("a tree", "the sea")


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz", "docs.JSONL.GZ"])
def test_gzip_by_content(tmp_path, name):
    """What gzip has packed is read under any name."""
    (tmp_path / name).write_bytes(gzip.compress(LINES["jsonl"].encode()))
    assert [*ck.read_items(tmp_path / name).ids] == ["d1", "d2"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ending", LINES)
def test_utf_16(tmp_path, ending, encoding):
    """What PowerShell and Excel write is refused by its name, never read as letters and NUL."""
    path = tmp_path / f"docs.{ending}"
    path.write_bytes(LINES[ending].encode(encoding))
    for read in (ck.read_items, ck.read_queries, ck.read_qrels):
        with pytest.raises(ck.InputError, match="line 1 is UTF-16, not UTF-8"):
            read(path)
