"""`crossknn serve` as a process, and its options."""

import signal
import urllib.error

import pytest
from service_helpers import QUERIES, ask, command, plain, url_of

import crossknn as ck
from crossknn.cli.app import run


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(indexes, tmp_path):
    (tmp_path / "keys.txt").write_text("a-good-key\n")
    options = ["docs", "faq", "--keys", "keys.txt", "--port", "0", "--deadline", "5s"]
    with command(tmp_path, *options) as process:
        url = url_of(process)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{url}/search", {"query": "a"})
        found = ask(f"{url}/search", {"query": QUERIES[0], "k": 3, "budget": 9}, "a-good-key")
        assert [hit["id"] for hit in found["results"][0]["hits"]] == plain(
            indexes["docs"], ck.CrossEncoder(), QUERIES[0], k=3, budget=9
        )[0]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
    assert "Traceback" not in said
    assert len(ck.ItemIndex.load(tmp_path / "docs").scores) == 9  # kept, for whoever comes next


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent"], "absent"),
        (["docs", "docs"], "two indexes are called 'docs'"),
        (["docs", "--keys", "no-such-file"], "no-such-file"),
        (["docs", "--keys", "short.txt"], "8 printable"),
        (["docs", "--method", "nonsense"], "nonsense"),
        (["docs", "--deadline", "soon"], "not a duration"),
    ],
)
def test_wrong_options_are_one_sentence(indexes, tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("abc")
    assert run(["serve", *arguments, "--port", "0"]) in (2, 6)
    said = capsys.readouterr().err
    assert told in said
    assert len(said.strip().splitlines()) == 1
