"""docs/reference/gate.md: every key of a gate, the outcomes it can judge, and the presets."""

from __future__ import annotations

from rollbook.contracts.gate import Gate
from rollbook.contracts.gate_presets import GATE_PRESETS
from rollbook.contracts.outcomes import OUTCOMES
from scripts.reference.config_page import sections
from scripts.reference.markdown import table

_HEAD = """# Gate

This page is made from the code by `make reference`; a test compares the two. A gate says what a candidate has to show
before it ships. It is written down before anything is measured: the server stores it with its digest when the run is
created. [Choose a gate](../guides/choose-a-gate.md) helps to choose; [statistics](../explain/statistics.md) explains
every number.

```sh
rollbook replay gate --preset strict --toml   # a complete gate to edit
rollbook replay gate --reward --toml          # for rewards without success
```

`rollbook replay run --gate-file gate.toml` uses a file, TOML or JSON; `--gate-preset strict` a preset; in Python
`create_run(gate=Gate(…))`, `gate="strict"` or a dict. A key that is not in the file has its default; an unknown key is
an error. The keys may be at the top of the file or in a table `[gate]`.

## Keys
"""


def gate_page() -> str:
    outcomes = table(
        ("metric", "what it is", "better is", "unit of a margin", "read from the metadata"),
        (
            (
                f"`{each.name}`",
                each.label,
                "higher" if each.higher_is_better else "lower",
                "share of the pairs" if each.type is bool else each.unit.strip() or "as recorded",
                ", ".join(f"`{key}`" for key in (*each.recorded_as, *each.also_recorded_as)),
            )
            for each in OUTCOMES.values()
        ),
    )
    presets = table(
        ("preset", "for what", "digest"),
        (
            (f"`{name}`", preset.about, f"`{preset.gate.digest[:12]}…`")
            for name, preset in GATE_PRESETS.items()
        ),
    )
    closing = (
        "[What each preset asks](../explain/statistics.md#presets) has its error rates and the pairs that it needs. "
        "[Reasons to hold](../guides/replay.md#the-gate) lists the reason codes of a decision, and [gates of an "
        "organisation](../guides/replay.md#gates-of-an-organisation) says which changes make a gate weaker."
    )
    parts = [
        _HEAD,
        *sections(Gate),
        "## Outcomes\n",
        f"{outcomes}\n",
        "## Presets\n",
        f"{presets}\n",
    ]
    return "\n".join([*parts, closing]) + "\n"
