"""One process at a time adds scores to a folder, whenever the other one ends."""

import pytest

from crossknn.errors import InputError
from crossknn.index.disk import alone

fcntl = pytest.importorskip("fcntl")


@pytest.mark.parametrize("made_again", [False, True])
def test_the_lock_of_a_folder_that_was_just_removed_is_none(tmp_path, monkeypatch, made_again):
    folder, lock = tmp_path / "work", fcntl.flock

    def too_late(handle, how):
        folder.rmdir()
        if made_again:
            folder.mkdir()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(InputError, match="another process is adding scores"), alone(folder):
        raise AssertionError("another one may have the folder's lock, too")


def test_a_folder_stays_if_something_has_come_into_it(tmp_path):
    for name in ("empty", "full"):
        with alone(tmp_path / name):
            if name == "full":
                (tmp_path / name / "file").touch()
            with pytest.raises(InputError, match="another process"), alone(tmp_path / name):
                pass
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_empty_folder_that_was_there_before_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ZeroDivisionError), alone(tmp_path / "mine"):
        raise ZeroDivisionError
    assert (tmp_path / "mine").is_dir()


def test_a_folder_with_what_a_killed_run_left_goes_when_that_is_gone(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "left").touch()
    with alone(tmp_path / "work"):
        (tmp_path / "work" / "left").unlink()
    assert not (tmp_path / "work").exists()
