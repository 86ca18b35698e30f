"""Every claim turned both ways by a study made for it; what is missing leaves it open."""

import pytest

from rti.study.claims import CLAIMS, accepted_ppl, check, listed
from rti.study.plan import ALGORITHMS
from rti.study.records import quarters
from tests.study.made import outcome, study

OTHERS = [a for a in ALGORITHMS if a != "rti"]


def verdict(key, outcomes):
    return next(v for v in check(study(outcomes)) if v.key == key)


def of(method, plain, ambiguous, **more):
    return [outcome(method, seed, plain, ambiguous, **more) for seed in range(3)]


def all_methods(rti, others, base=(4, 0)):
    return [*of("base", *base, part="base"), *of("rti", *rti), *(o for m in OTHERS for o in of(m, *others))]


def test_rti_beats_all_where_it_does_and_not_where_one_method_is_better_in_one_measure():
    good = verdict("rti_beats_all", all_methods((4, 3), (4, 1)))
    assert good.holds and good.clear and len(good.numbers) == 2 * 6
    assert good.numbers[2].estimate.value == pytest.approx(2 / 3 * 0.5)
    # as often right, but never on the same task twice: p@1 is equal, avg p^k is not
    bad = verdict("rti_beats_all", [*all_methods((4, 2), (4, 1)), *of("opd", 4, 3)])
    assert bad.holds is False and {n.label for n in bad.numbers if not n.holds} == {"rti - opd, p@1", "rti - opd, avg p^k"}


def test_grpo_within_five_points():
    stays = [*of("base", 4, 0, part="base"), *of("grpo", 4, 0)]
    assert verdict("grpo_stays", stays).holds
    leaves = verdict("grpo_stays", [*of("base", 4, 0, part="base"), *of("grpo", 4, 1)])
    assert leaves.holds is False and leaves.clear


def test_ablations_are_compared_on_the_seeds_that_they_share():
    rti = [outcome("rti", 0, 4, 2), outcome("rti", 1, 4, 4)]
    one = outcome("no_gate", 0, 4, 1, part="ablations")
    found = verdict("gate_matters", [*rti, one])
    assert found.holds and found.numbers[0].estimate.value == pytest.approx(2 / 3 * 0.25), "seed 1 has no partner"
    assert verdict("gate_matters", [*rti, outcome("no_gate", 0, 4, 3, part="ablations")]).holds is False
    assert verdict("verifier_matters", [*rti, one]).why == "no seed of rti and of no_verifier is complete"


def test_one_comparison_that_fails_is_enough_though_others_are_missing():
    sweep = [*of("rti", 4, 2), *of("delta_3", 4, 3)]
    found = verdict("delta_5_is_best", sweep)
    assert found.holds is False and len(found.numbers) == 1 and "delta_20" in found.why
    open_ = verdict("delta_5_is_best", [*of("rti", 4, 2), *of("delta_3", 4, 1)])
    assert open_.holds is None and open_.numbers[0].holds and "no_gate" in open_.why


def test_the_mildest_ablation_is_above_the_others():
    def made(reweighting):
        return [*of("no_reweighting", 4, reweighting), *of("no_verifier", 4, 2), *of("no_gate", 4, 1)]
    assert verdict("reweighting_is_mildest", made(3)).holds
    assert verdict("reweighting_is_mildest", made(1)).holds is False


def test_the_sweep_and_the_stronger_intervener():
    sweep = [o for m in ("delta_0", "delta_3", "delta_20", "no_gate") for o in of(m, 4, 1)]
    assert verdict("delta_5_is_best", [*sweep, *of("rti", 4, 2)]).holds
    assert verdict("delta_5_is_best", [*sweep[3:], *of("delta_0", 4, 3), *of("rti", 4, 2)]).holds is False
    assert verdict("stronger_is_not_better", [*of("rti", 4, 2), *of("external", 4, 2)]).holds
    assert verdict("stronger_is_not_better", [*of("rti", 4, 2), *of("external", 4, 3)]).holds is False


def test_what_happens_within_runs():
    rising = of("rti", 4, 2, curves={"pass@G/before": [0.2, 0.3, 0.8, 0.9], "ppl/accepted_mean": [4.0, 3.0, None, 2.0],
                                     "intervention/accepted": [5, 1, 0, 2]}, turns={2: 5, 3: 5})
    grpo = of("grpo", 4, 0, turns={2: 9, 3: 1})
    assert verdict("pass_8_rises", rising).numbers[0].estimate.value == pytest.approx(0.7)
    assert verdict("ppl_falls", rising).holds and verdict("turns_stay_broad", [*rising, *grpo]).holds
    falling = of("rti", 4, 2, curves={"pass@G/before": [0.9, 0.2], "ppl/accepted_mean": [2.0, 3.0],
                                      "intervention/accepted": [1, 1]}, turns={2: 10})
    for key in ("pass_8_rises", "ppl_falls"):
        assert verdict(key, falling).holds is False
    assert verdict("turns_stay_broad", [*falling, *grpo]).holds is False


def test_perplexities_count_as_often_as_they_were_accepted_and_quarters_pass_over_gaps():
    made = outcome("rti", 0, 4, 2, curves={"ppl/accepted_mean": [4.0, 3.0, None, 2.0], "intervention/accepted": [2, 1, 0, 1]})
    assert accepted_ppl(made) == ([4.0, 4.0, 3.0], [2.0])
    assert quarters([1, None, 2, 3, 4, 5, 6, 7, 8]) == ([1, 2], [7, 8])


def test_no_correction_in_the_second_half_leaves_it_open():
    curves = {"ppl/accepted_mean": [2.0, None], "intervention/accepted": [1, 0]}
    found = verdict("ppl_falls", of("rti", 4, 2, curves=curves))
    assert found.holds is None and "no correction was accepted" in found.why


def test_an_empty_study_tells_nothing_and_the_list_says_so():
    verdicts = check(study([]))
    assert [v.holds for v in verdicts] == [None] * len(CLAIMS)
    assert listed(verdicts).count("unknown") == len(CLAIMS)
    text = listed(check(study(all_methods((4, 1), (4, 2)))))
    assert "FALSE   RTI beats every other method" in text and "rti - gspo, p@1: -16.67 points" in text
