"""docs/study/README.md: the claims with their verdicts, the plots and the tables, all of it made from study.json. Pure."""

from __future__ import annotations

from typing import Sequence

from rti.study import claims, tables
from rti.study.claims import Verdict
from rti.study.records import Study

WORDS = {True: "**holds**", False: "**does not hold**", None: "not told"}
SHOWN = 12      # of the names of what is missing
PLOTS = {
    "dynamics.png": "Training dynamics. Left: Pass@k on the test tasks; right: groups with a success among their rollouts.",
    "perplexity.png": "Perplexity of accepted corrections under the rollout prompt, over training.",
    "turns.png": "How many turns the plain rollouts of the last quarter of training took.",
    "sweep.png": "p@1 over the gate's threshold.",
    "weights.png": "The tokens of a rescued rollout and what each weighs.",
}


def text(study: Study, plots: Sequence[str]) -> str:
    """The page. Everything but the words between the numbers comes from the study."""
    verdicts = claims.check(study)
    scale = study.scale
    parts = [
        "# The lab study", _opening(study),
        "## What holds at this scale", summary(verdicts), _verdicts(verdicts),
        "## Methods", f"In percent, with 95 % intervals over seeds and tasks; {scale['samples']} samples of each of "
        f"{len(study.classes)} test tasks.", tables.methods(study),
        "## What was spent", _accounting(study), tables.budget(study),
        "## Ablations", tables.ablations(study) or "No run yet.",
        "## The gate's threshold", tables.sweep(study) or "No run yet.",
        "## Another intervener, other settings", tables.others(study) or "No run yet.",
        "## What the interventions did", "All seeds of a row's runs together.", tables.interventions(study) or "No run yet.",
        "## Learning rates", _search(study), tables.search(study),
        "## Plots", *(f"![{told}]({name})\n\n{told}" for name, told in PLOTS.items() if name in plots),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, in a sentence."""
    told = [v for v in verdicts if v.holds is not None]
    held = sum(bool(v.holds) for v in told)
    doubtful = sum(not v.clear for v in told)
    return (f"Of {len(verdicts)} claims {held} hold, {len(told) - held} do not, and {len(verdicts) - len(told)} cannot be told "
            f"from the runs that there are. {doubtful} of these verdicts are within their intervals: other seeds may turn "
            "them. `python launch/study.py --check` gives the same list.")


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for v in verdicts:
        numbers = "<br>".join(f"{n.label}: {claims.shown(n)}" + ("" if n.holds else " (no)") for n in v.numbers)
        doubt = " (within its interval)" if v.holds is not None and not v.clear else ""
        rows.append([v.claim, WORDS[v.holds] + doubt, "<br>".join(filter(None, (numbers, v.why)))])
    return tables.markdown(["claim", "here", "numbers"], rows)


def _opening(study: Study) -> str:
    scale = study.scale
    missing = ("Every run of the plan is complete." if not study.missing else
               f"**{len(study.missing)} entries of the plan are not complete**, and what rests on them alone is left out: "
               f"{', '.join(study.missing[:SHOWN])}{' and others' if len(study.missing) > SHOWN else ''}.")
    policy, teacher = study.parameters.get("policy"), study.parameters.get("teacher")
    teachers = (f" The teacher of OPD and LUFFY, and the external intervener, has {teacher / 1e6:.2f} million: a "
                f"larger copy (`rti/lab/grow.py`) after {scale['teacher_steps']} steps of RTI on seed {scale['search_seed']}."
                if teacher else "")
    return (f"Made by `python launch/study.py` from its runs; nothing on this page is written by hand. {missing}\n\n"
            f"The policy has {policy / 1e6:.2f} million parameters.{teachers} Everything here is of this small policy on this "
            "small task; it says how the method's parts work together, and nothing about models of billions.")


def _accounting(study: Study) -> str:
    size, groups = study.rollouts_per_step
    return (f"Every run may make {study.scale['budget']} rollouts for training, counted whether or not they teach: {size} "
            f"plain ones in each of {groups} groups a step, every intervened one, and all of the teacher's own. RTI and LUFFY "
            "reserve the most that running failed groups again can cost and take fewer steps for it, so that no other method "
            "has less. A branch of AEPO counts as a rollout. Answers of roles, rescoring and the teacher's reading are not "
            "rollouts, and are in the seconds alone; those depend on what else the machine did. Updates differ where whole "
            "steps teach nothing: that is the methods' own doing. Evaluations cost every method the same.")


def _search(study: Study) -> str:
    return (f"Every method got the same search on seed {study.scale['search_seed']}, which no other run uses, with "
            f"{study.scale['search_budget']} rollouts a run. Compared is the mean outcome of the plain rollouts in the last "
            "quarter of the run, on training tasks; the test tasks have no part in it. RTI's variants take RTI's rate.")
