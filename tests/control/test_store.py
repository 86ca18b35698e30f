"""The buffer's store: journal, rebuild after a death, damage at the tail, memory bound, resume."""

import os
import random

import pytest

from rti.control.journal import Journal, Kind
from rti.control.leases import LeaseError
from rti.control.store import Facts, GroupStore


def facts(group_id: str, admitted=0, oldest=0, newest=0) -> Facts:
    return Facts(group_id, admitted, oldest, newest)


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
    with pytest.raises(OSError, match="No space"):
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
            assert store.put(facts(name), data) is fresh
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
                del live[i]
                consumed[i] = step
        elif action == "void" and live:
            name = rng.choice(sorted(live))
            assert store.void([name]) == [name]
            del live[name]
        elif action == "die":
            store = GroupStore(path, memory_bytes=300)
        elif action == "again" and consumed:
            name = rng.choice(sorted(consumed))
            with pytest.raises(LeaseError):
                store.lease(step + 1, [name])
    assert store.stats()["groups"] == len(live)
