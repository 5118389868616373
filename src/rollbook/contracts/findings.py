"""Finding: the result of one check. `rollbook contracts check` and `rollbook server doctor` print findings."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.errors import RollbookError


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    passed: bool
    detail: str
    code: str | None = None
    """The code of the error; None when the check passed."""
    unchecked: int = 0
    """Rollouts that the record names and that could not be checked, because they were not given."""

    @classmethod
    def violation(cls, subject: str, problem: RollbookError) -> Finding:
        return cls(subject, False, str(problem), problem.code)
