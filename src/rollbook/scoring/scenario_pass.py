"""Whether a result shows that the candidate passes a critical scenario. Runner and server use the same rule."""

from __future__ import annotations

from rollbook.contracts.evals import EVIDENCE, MEASURED, EvalResult
from rollbook.contracts.gate import Gate
from rollbook.scoring.result_columns import ResultColumns


def shows_success(result: EvalResult, gate: Gate) -> bool:
    """Whether the success was measured, in the recorded environment.

    The gate of the run may accept an environment that nobody compared with the recorded one. No gate can accept what
    the policy states about itself.
    """
    columns = ResultColumns.of([result])
    success = columns.outcomes["success"]
    kind = EVIDENCE[success.evidence[0]]
    if not columns.complete[0] or success.candidate[0] != 1:
        return False
    if kind not in MEASURED or kind not in gate.evidence:
        return False
    if columns.env_changes or columns.env_mismatch[0] or columns.nondeterministic[0]:
        return False
    unverified = columns.unverified is not None and bool(columns.unverified[0])
    return kind != "closed_loop" or not unverified or gate.accept_unverified_environment
