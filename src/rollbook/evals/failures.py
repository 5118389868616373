"""Failed results: what is kept of an error, and what is printed of it."""

from __future__ import annotations

import sys
import traceback

from rollbook.contracts.evals import INFRASTRUCTURE, INTERRUPTED, LONGEST_ERROR, EvalResult
from rollbook.errors import PolicyFailed

_LONGEST_LINE = 200


def failed_result(
    baseline_id: str, kind: str, message: str, traceback: str | None = None
) -> EvalResult:
    """An error of the policy or of its environment, by name and message.

    It never begins like a failure of the infrastructure or an interrupted replay, however the class of the error is
    called: only the runner may say that a failure does not count against the candidate, or that a pair is replayed
    again.
    """
    error = f"{kind}: {message}".removesuffix(": ")
    if error.lstrip().lower().startswith((INFRASTRUCTURE.strip(), INTERRUPTED.strip())):
        error = f"error of the policy: {error}"
    return EvalResult(
        baseline_id, None, "failed", {}, error[:LONGEST_ERROR], traceback=traceback or None
    )


def failed_by(baseline_id: str, error: BaseException) -> EvalResult:
    if isinstance(error, PolicyFailed):
        return failed_result(baseline_id, error.kind, error.message, error.traceback)
    trace = "".join(traceback.format_exception(error))
    return failed_result(baseline_id, type(error).__name__, str(error), trace)


def infrastructure_failure(baseline_id: str, error: Exception) -> EvalResult:
    """A failure that says nothing about the candidate. A resumed run replays the baseline again."""
    reason = f"{INFRASTRUCTURE}{type(error).__name__}: {error}"[:LONGEST_ERROR]
    return EvalResult(baseline_id, None, "failed", {}, reason)


def interrupted_result(baseline_id: str) -> EvalResult:
    """An attempt that is kept. The baseline is replayed again."""
    error = f"{INTERRUPTED}the runner ended while this pair was replayed"
    return EvalResult(baseline_id, None, "failed", {}, error)


def print_failure(result: EvalResult, *, verbose: bool) -> None:
    """One line on standard error; with `verbose` also the traceback."""
    sys.stderr.write(f"{result.baseline_episode_id}: {_on_a_line(result.error or '')}\n")
    if verbose and result.traceback:
        sys.stderr.write(_visible(result.traceback).rstrip("\n") + "\n")


def print_lost_journal(unanswered: int) -> None:
    """On standard error."""
    sys.stderr.write(
        "the journal of the earlier runner is not here, so nobody knows which pairs it was replaying when it ended: "
        f"{unanswered} pairs without a result count as retried\n"
    )


def _on_a_line(error: str) -> str:
    return _visible(next(iter(error.splitlines()), ""))[:_LONGEST_LINE]


def _visible(text: str) -> str:
    """Without control characters: the text may come from a stranger."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)
