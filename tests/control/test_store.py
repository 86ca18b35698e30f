"""The buffer's store: journal, rebuild after a death, damage at the tail, memory bound, resume."""

import contextlib
import os
import random
import resource

import pytest

from rti.control.journal import Journal, JournalError, Kind
from rti.control.leases import LeaseError
from rti.control.store import Facts, GroupStore


def facts(group_id: str, admitted=0, oldest=0, newest=0, uses=1) -> Facts:
    return Facts(group_id, admitted, oldest, newest, uses=uses)


@contextlib.contextmanager
def room_for(path, more: int):
    """The system takes no more than `more` bytes beyond the file's end, as a full disk does: a write may be done in part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_leased_bytes_are_what_was_put_in_the_order_asked_for(tmp_path):
    store = GroupStore(tmp_path / "j", 1 << 20)
    store.put(facts("a"), b"A" * 10)
    store.put(facts("b"), b"B" * 20)
    assert store.lease(1, ["b", "a"]) == [b"B" * 20, b"A" * 10]


def test_a_second_copy_is_dropped(tmp_path):
    store = GroupStore(tmp_path / "j", 1 << 20)
    assert store.put(facts("a"), b"first")
    assert not store.put(facts("a"), b"second")
    assert store.lease(1, ["a"]) == [b"first"]
    store.commit(1, ["a"])
    assert not store.put(facts("a"), b"third")


def test_a_rebuilt_store_holds_what_was_not_consumed_and_refuses_what_was(tmp_path):
    store = GroupStore(tmp_path / "j", 1 << 20)
    for name in "abcd":
        store.put(facts(name), name.encode() * 5)
    store.lease(1, ["a", "b"])
    store.commit(1, ["a", "b"])
    store.void(["c"])
    store.lease(2, ["d"])       # the death comes before the commit
    again = GroupStore(tmp_path / "j", 1 << 20)
    assert again.cut == 0
    assert again.stats()["groups"] == 1
    assert not again.put(facts("a"), b"copy")
    again.commit(1, ["a", "b"])     # asked again because the answer was lost
    assert again.put(facts("c"), b"anew")
    assert again.lease(2, ["d", "c"]) == [b"ddddd", b"anew"]


@pytest.mark.parametrize("damage", ["truncate", "garbage", "flip"])
def test_a_damaged_tail_costs_the_last_record_alone(tmp_path, damage):
    path = tmp_path / "j"
    store = GroupStore(path, 1 << 20)
    store.put(facts("a"), b"A" * 100)
    whole = path.stat().st_size
    store.put(facts("b"), b"B" * 100)
    if damage == "truncate":
        os.truncate(path, path.stat().st_size - 7)
    elif damage == "garbage":
        os.truncate(path, whole)
        with path.open("ab") as f:
            f.write(b"\0" * 50)
    else:
        with path.open("r+b") as f:
            f.seek(-3, os.SEEK_END)
            f.write(b"x")
    again = GroupStore(path, 1 << 20)
    assert again.cut > 0 and path.stat().st_size == whole
    assert again.put(facts("b"), b"anew")
    assert GroupStore(path, 1 << 20).lease(1, ["a", "b"]) == [b"A" * 100, b"anew"]


def test_any_cut_of_the_file_gives_a_store_that_works(tmp_path):
    path = tmp_path / "j"
    store = GroupStore(path, 1 << 20)
    for i in range(6):
        store.put(facts(str(i)), bytes([i]) * (3 * i))
    store.commit(1, ["0", "3"])
    whole = path.read_bytes()
    for cut in range(0, len(whole), 5):
        path.write_bytes(whole[:cut])
        again = GroupStore(path, 1 << 20)
        ids = [g for g in again._records]
        assert again.lease(9, ids) == [bytes([int(g)]) * (3 * int(g)) for g in ids]
        again.close()


def test_groups_beyond_the_memory_bound_come_back_from_the_journal(tmp_path):
    store = GroupStore(tmp_path / "j", memory_bytes=250)
    for i in range(10):
        store.put(facts(str(i)), bytes([i]) * 100)
    stats = store.stats()
    assert stats["memory_bytes"] == 200 and stats["in_memory"] == 2 and stats["groups"] == 10
    assert store.lease(1, [str(i) for i in range(10)]) == [bytes([i]) * 100 for i in range(10)]
    store.commit(1, [str(i) for i in range(10)])
    assert store.stats()["memory_bytes"] == 0


def test_resume_goes_back_to_the_checkpoint(tmp_path):
    store = GroupStore(tmp_path / "j", 1 << 20)
    store.put(facts("a"), b"a")
    store.put(facts("b", admitted=1, oldest=1, newest=1), b"b")
    store.put(facts("early"), b"e")
    store.put(facts("spans", admitted=0, oldest=0, newest=2), b"s")
    store.commit(1, ["a"])
    store.commit(2, ["b"])
    held = GroupStore(tmp_path / "j", 1 << 20).resume(step=1, version=1)
    assert [f.group_id for f in held] == ["early"]
    again = GroupStore(tmp_path / "j", 1 << 20)     # a later death in the resumed run rebuilds the resumed state
    assert again.stats()["groups"] == 1
    assert again.put(facts("b"), b"b anew") and not again.put(facts("a"), b"")


def test_the_journal_is_rewritten_when_it_holds_mostly_dead_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("rti.control.store._SLACK", 1000)
    store = GroupStore(tmp_path / "j", 1 << 20)
    store.put(facts("keep"), b"k" * 100)
    for i in range(50):
        store.put(facts(str(i)), b"x" * 100)
        store.commit(i, [str(i)])
    assert store.stats()["journal_bytes"] < 5000
    again = GroupStore(tmp_path / "j", 1 << 20)
    assert not again.put(facts("7"), b"copy")
    assert again.lease(99, ["keep"]) == [b"k" * 100]


def test_a_write_that_fails_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "j")
    journal.append(Kind.PUT, {"id": "a"}, b"A")
    size, real, calls = journal.size, os.pwrite, []

    def full(fd, data, at):
        calls.append(at)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(JournalError, match="No space"):
        journal.append(Kind.PUT, {"id": "b"}, b"B")
    monkeypatch.undo()
    assert journal.size == size == (tmp_path / "j").stat().st_size
    journal.append(Kind.PUT, {"id": "c"}, b"C")
    assert [r.meta["id"] for r in Journal(tmp_path / "j").records] == ["a", "c"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_and_whenever_it_dies_nothing_is_lost_or_consumed_twice(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("rti.control.store._SLACK", 200)
    rng = random.Random(seed)
    path = tmp_path / "j"
    store = GroupStore(path, memory_bytes=300)
    live: dict[str, bytes] = {}
    consumed: dict[str, int] = {}
    step = 0
    for turn in range(300):
        action = rng.choice(["put", "put", "put", "step", "void", "die", "again"])
        if action == "put":
            name, data = str(rng.randrange(120)), rng.randbytes(rng.randrange(60))
            fresh = name not in live and name not in consumed
            assert store.put(facts(name, uses=1 + int(name) % 3), data) is fresh
            if fresh:
                live[name] = data
        elif action == "step" and live:
            ids = rng.sample(sorted(live), rng.randint(1, min(4, len(live))))
            step += 1
            assert store.lease(step, ids) == [live[i] for i in ids]
            if rng.random() < 0.3:
                store = GroupStore(path, memory_bytes=300)      # died with the lease
            store.commit(step, ids)
            for i in ids:
                consumed[i] = consumed.get(i, 0) + 1
                if consumed[i] > int(i) % 3:
                    del live[i]
        elif action == "void" and live:
            name = rng.choice(sorted(live))
            assert store.void([name]) == [name]
            del live[name]
        elif action == "die":
            store = GroupStore(path, memory_bytes=300)
        elif action == "again" and (gone := sorted(consumed.keys() - live.keys())):
            name = rng.choice(gone)
            with pytest.raises(LeaseError):
                store.lease(step + 1, [name])
    assert store.stats()["groups"] == len(live)
    assert store.stats()["memory_bytes"] <= 300


# --- groups that may be used again, memory, the disk ---------------------------------------------------------------
@pytest.mark.parametrize("memory_bytes", [1 << 20, 0])
def test_uses_are_counted_over_deaths_and_the_bytes_stay_the_same(tmp_path, memory_bytes):
    path, data = tmp_path / "j", bytes(range(256)) * 3
    GroupStore(path, memory_bytes).put(facts("a", uses=3), data)
    for step in (1, 2, 3):
        store = GroupStore(path, memory_bytes)
        assert store.lease(step, ["a"]) == [data]
        store.commit(step, ["a"])
        again = GroupStore(path, memory_bytes)      # it died after it had written, before it answered
        again.commit(step, ["a"])
        assert again.stats()["groups"] == (step < 3)
    with pytest.raises(LeaseError, match="step 1, 2, 3 consumed"):
        again.lease(4, ["a"])
    assert not again.put(facts("a", uses=3), data)


def test_a_resume_says_how_often_a_group_was_used_and_so_does_the_journal_it_rewrites(tmp_path):
    path = tmp_path / "j"
    store = GroupStore(path, 1 << 20)
    store.put(facts("a", uses=3), b"a")
    store.put(facts("b", uses=3), b"b")
    for step, ids in ((1, ["a"]), (2, ["a", "b"])):
        store.commit(step, ids)
    expected = [Facts("a", 0, 0, 0, uses=3, used=1), Facts("b", 0, 0, 0, uses=3)]
    assert GroupStore(path, 1 << 20).resume(step=1, version=1) == expected
    assert GroupStore(path, 1 << 20).resume(step=1, version=1) == expected


def test_void_takes_a_group_that_is_on_the_disk_alone(tmp_path):
    store = GroupStore(tmp_path / "j", memory_bytes=100)
    for name in "abc":
        store.put(facts(name), name.encode() * 100)
    assert store.stats()["in_memory"] == 1
    assert store.void(["a"]) == ["a"]
    assert GroupStore(tmp_path / "j", 0).lease(1, ["b", "c"]) == [b"b" * 100, b"c" * 100]
    assert store.put(facts("a"), b"anew") and store.lease(1, ["a"]) == [b"anew"]


@pytest.mark.parametrize("room", [0, 10, 500])
def test_a_full_disk_refuses_a_group_says_so_and_costs_no_other(tmp_path, room):
    path = tmp_path / "j"
    store = GroupStore(path, memory_bytes=0)
    store.put(facts("a"), b"A" * 300)
    whole = path.read_bytes()
    with room_for(path, room), pytest.raises(JournalError, match="could not take .* free.*Make room.*start the same command"):
        store.put(facts("b"), b"B" * 1000)
    assert path.read_bytes() == whole
    with room_for(path, 0), pytest.raises(JournalError, match="could not take"):
        store.commit(1, ["a"])
    assert store.lease(1, ["a"]) == [b"A" * 300]        # neither of them has happened
    assert store.put(facts("b"), b"B" * 1000)           # there is room again
    assert GroupStore(path, 0).lease(1, ["a", "b"]) == [b"A" * 300, b"B" * 1000]


def test_a_disk_without_room_for_a_shorter_journal_keeps_the_long_one(tmp_path, monkeypatch):
    monkeypatch.setattr("rti.control.store._SLACK", 1000)
    path = tmp_path / "j"
    store = GroupStore(path, 1 << 20)
    store.put(facts("keep"), b"k" * 1200)
    store.put(facts("dead"), b"x" * 3000)
    refused = JournalError("no room")

    def full(records):
        raise refused

    monkeypatch.setattr(store._journal, "rewrite", full)
    store.commit(1, ["dead"])
    assert store.stats()["journal_bytes"] > 4200
    assert GroupStore(path, 1 << 20).lease(2, ["keep"]) == [b"k" * 1200]


def test_a_rewrite_that_fails_leaves_nothing_beside_the_journal(tmp_path):
    path = tmp_path / "j"
    journal = Journal(path)
    record = journal.append(Kind.PUT, {"id": "a"}, b"A" * 100)
    with room_for(path, 0), pytest.raises(JournalError, match="could not take"):
        journal.rewrite([(Kind.PUT, {"id": "a"}, b"A" * 500)])
    assert [p.name for p in tmp_path.iterdir()] == ["j"]
    assert journal.read(record) == b"A" * 100


def test_bytes_that_changed_on_the_disk_are_never_leased(tmp_path):
    path = tmp_path / "j"
    store = GroupStore(path, memory_bytes=0)
    store.put(facts("a"), b"A" * 100)
    store.put(facts("b"), b"B" * 100)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 50)
        file.write(b"x")
    assert store.lease(1, ["a"]) == [b"A" * 100]
    with pytest.raises(JournalError, match="is damaged.*start the same command again"):
        store.lease(1, ["b"])
    again = GroupStore(path, 0)
    assert again.cut and again.put(facts("b"), b"anew")
