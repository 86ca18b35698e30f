"""The lease table: a group goes to one step, once (invariant 5)."""

import pytest

from rti.control.leases import LeaseError, LeaseTable


def table(*ids: str) -> LeaseTable:
    t = LeaseTable()
    for group_id in ids:
        assert t.put(group_id)
    return t


def test_a_group_is_put_once_whether_live_or_consumed():
    t = table("a")
    assert not t.put("a")
    t.lease(1, ["a"])
    t.commit(1, ["a"])
    assert not t.put("a")
    assert len(t) == 0


def test_a_step_leases_what_no_other_step_holds():
    t = table("a", "b")
    t.lease(1, ["a"])
    t.lease(1, ["a"])       # asked again because the answer was lost
    with pytest.raises(LeaseError, match="step 1 holds"):
        t.lease(2, ["b", "a"])
    t.lease(2, ["b"])       # the refused call took nothing


@pytest.mark.parametrize("ids, why", [(["x"], "not in the buffer"), (["a", "a"], "twice")])
def test_a_lease_of_unknown_or_doubled_groups_is_refused(ids, why):
    with pytest.raises(LeaseError, match=why):
        table("a").lease(1, ids)


def test_released_groups_can_be_leased_by_another_step():
    t = table("a", "b")
    t.lease(1, ["a", "b"])
    assert t.release(1) == ["a", "b"]
    t.lease(2, ["a"])


def test_commit_is_idempotent_and_belongs_to_one_step():
    t = table("a", "b")
    t.lease(1, ["a"])
    assert t.commit(1, ["a"]) == ["a"]
    assert t.commit(1, ["a"]) == []
    with pytest.raises(LeaseError, match="step 1 consumed"):
        t.commit(2, ["a"])
    with pytest.raises(LeaseError, match="step 1 consumed"):
        t.lease(2, ["a"])
    with pytest.raises(LeaseError, match="never put"):
        t.commit(1, ["z"])


def test_a_group_held_by_another_step_cannot_be_committed():
    t = table("a")
    t.lease(1, ["a"])
    with pytest.raises(LeaseError, match="step 1 holds"):
        t.commit(2, ["a"])


def test_a_rebuilt_table_knows_no_leases_and_still_commits():
    assert table("a").commit(1, ["a"]) == ["a"]


def test_voided_groups_may_be_put_anew_but_leased_ones_are_not_voided():
    t = table("a", "b")
    assert t.void(["a", "unknown"]) == ["a"]
    assert t.put("a")
    t.lease(1, ["b"])
    with pytest.raises(LeaseError, match="step 1 holds"):
        t.void(["b"])


def test_a_rewind_forgets_what_later_steps_consumed():
    t = table("a", "b", "c")
    t.commit(1, ["a"])
    t.commit(2, ["b"])
    t.lease(3, ["c"])
    t.rewind(1)
    assert t.consumed == {"a": [1]}
    assert t.put("b") and not t.put("a")
    t.lease(2, ["b", "c"])


# --- groups that may be used again ---------------------------------------------------------------------------------
def test_a_group_goes_to_as_many_steps_as_its_allowance_one_after_the_other():
    t = LeaseTable()
    t.put("a", uses=2)
    t.lease(1, ["a"])
    with pytest.raises(LeaseError, match="step 1 holds"):
        t.lease(2, ["a"])
    assert t.commit(1, ["a", "a"]) == ["a"] and t.commit(1, ["a"]) == []     # asked twice counts once
    assert "a" in t and t.used("a") == 1 and not t.put("a")
    with pytest.raises(LeaseError, match="consumed already"):
        t.lease(1, ["a"])
    t.lease(2, ["a"])
    assert t.commit(2, ["a"]) == ["a"] and "a" not in t
    with pytest.raises(LeaseError, match="step 1, 2 consumed"):
        t.lease(3, ["a"])
    with pytest.raises(LeaseError, match="step 1, 2 consumed"):
        t.commit(3, ["a"])


def test_a_group_that_is_voided_between_its_uses_never_comes_back():
    t = LeaseTable()
    t.put("a", uses=3)
    t.commit(1, ["a"])
    assert t.void(["a"]) == ["a"]
    assert not t.put("a") and t.consumed == {"a": [1]}


def test_a_rewind_takes_back_single_uses():
    t = LeaseTable()
    t.put("a", uses=3)
    for step in (1, 2):
        t.commit(step, ["a"])
    t.rewind(1)
    assert t.used("a") == 1 and "a" in t
    t.rewind(0)
    assert t.used("a") == 0 and "a" in t and not t.put("a")


def test_a_journal_of_before_groups_could_be_used_again_is_understood():
    t = LeaseTable()
    t.consumed_before({"a": 3, "b": [1, 2]})
    assert t.consumed == {"a": [3], "b": [1, 2]}
