from __future__ import annotations

import os
import stat
import threading
import warnings
from pathlib import Path

import pytest

from wholestep.compiler.runtime import cache as cache_module
from wholestep.compiler.runtime.cache import Cache, CacheWarning, key_of


def test_what_was_put_is_found_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "store")
    key = key_of("some", "parts")
    assert cache.get(key, ".so") is None
    path = cache.put(key, b"data", ".so")
    assert cache.get(key, ".so") == path
    assert path.read_bytes() == b"data"
    assert cache.get(key, ".json") is None
    assert cache.get(key_of("other"), ".so") is None


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    cache = Cache(folder)
    cache.put(key_of("a"), b"x", ".so")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_parts_are_not_run_together_in_a_key() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("a", b"b") == key_of(b"a", "b")


@pytest.mark.parametrize("damaged", [b"", b"dat", b"datA", b"data and more"])
def test_a_damaged_entry_is_a_miss_with_a_warning_and_is_removed(tmp_path: Path, damaged: bytes) -> None:
    cache = Cache(tmp_path)
    path = cache.put(key_of("a"), b"data", ".so")
    path.write_bytes(damaged)
    with pytest.warns(CacheWarning, match="damaged; it was removed"):
        assert cache.get(key_of("a"), ".so") is None
    assert not path.exists()
    cache.put(key_of("a"), b"data", ".so")
    assert cache.get(key_of("a"), ".so") == path


def test_a_file_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    path = cache.put(key_of("a"), b"data", ".so")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="another user"):
        assert cache.get(key_of("a"), ".so") is None
    assert path.exists()


def test_an_unusable_folder_costs_one_warning_and_works_privately(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    with pytest.warns(CacheWarning, match="cannot be used"):
        path = Cache(blocked).put(key_of("a"), b"data", ".so")
    assert not path.is_relative_to(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(blocked).get(key_of("a"), ".so") == path


def test_an_interrupted_write_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put(key_of("a"), b"data", ".so")
    assert cache.get(key_of("a"), ".so") is None
    assert list((tmp_path / key_of("a")).iterdir()) == []


def test_a_lock_held_elsewhere_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.05)
    cache = Cache(tmp_path)
    entered = []
    (tmp_path / key_of("a")).mkdir()
    with filelock.FileLock(tmp_path / key_of("a") / ".lock"):

        def enter() -> None:
            with cache.lock(key_of("a")):
                entered.append(True)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(timeout=5)
    assert entered == [True]


def test_discard_removes_the_entries_of_one_key_alone(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put("a", b"1", ".plan")
    store.put("a", b"2", ".verdict")
    kept = store.put("b", b"3", ".plan")
    store.discard("a")
    assert store.get("a", ".plan") is None
    assert store.get("a", ".verdict") is None
    assert kept.exists()
    store.discard("never stored")
    with pytest.raises(AssertionError, match="an empty key names the whole cache"):
        store.discard("")
    assert kept.exists()
