"""`rollbook replay plan`: how many pairs, scenes and hours a decision takes, before anything is run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, print_rows, say, shown_duration
from rollbook.errors import ConfigurationError, MalformedJson

if TYPE_CHECKING:
    from rollbook.contracts.decision import OutcomeSummary, Rollup
    from rollbook.contracts.gate import Gate
    from rollbook.scoring.planning import ExpectedPairs, PlannedPairs

    Measured = TypeVar("Measured", bound=OutcomeSummary)

_EFFECT = re.compile(r"\s*\+?(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>points|sd)?\s*")
_USUAL_DIFFER = 0.3
_USUAL_CORRELATION = 0.3

Effect = Annotated[
    str,
    typer.Option(
        metavar="GAIN",
        help="The gain that should be found: 10points of the success rate, 0.3sd (standard deviations of the reward's "
        "gain), or a number in the unit of the reward, with --spread or --from-run.",
    ),
]
Power = Annotated[
    float, typer.Option(help="Probability that a candidate with this gain ships, such as 0.8.")
]
FromRun = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Completed run on similar baselines. Its pairs say how much pairs differ, how alike scenes are, and how "
        "long a pair takes.",
    ),
]
FromResults = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The same from a file with what `rollbook replay run --json` printed."
    ),
]
Differ = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="For success: share of the pairs in which only one policy succeeds. Without it, "
        f"{_USUAL_DIFFER}.",
    ),
]
Spread = Annotated[
    float | None,
    typer.Option(help="For a reward: standard deviation of the gain of a pair."),
]
WorstLoss = Annotated[
    float | None,
    typer.Option(
        help="For a reward: width of the reward range that the gate will declare, in the unit of --effect. Without it, "
        "8 standard deviations and at least 150 pairs."
    ),
]
Scenes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=2,
        help="Number of scenes that there are. The plan says how often to use each.",
    ),
]
PairsPerScene = Annotated[
    float | None,
    typer.Option(metavar="N", help="Pairs of each scene. The plan says how many scenes it takes."),
]
Correlation = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help=f"How alike two pairs of one scene are, from 0 to 1. Without it, {_USUAL_CORRELATION}.",
    ),
]
SecondsPerPair = Annotated[
    float | None, typer.Option(metavar="S", help="Time that the replay of one pair takes.")
]
Looks = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4,
        help="Plan for a run that is judged so many times, each time with twice as many pairs. It may end early.",
    ),
]
Primaries = Annotated[
    int,
    typer.Option(
        min=1,
        max=2,
        help="Outcomes that may show the gain. 2: success and reward are both measured, so each is tested at half of "
        "the level.",
    ),
]
PresetName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this preset: quick, default or strict.")
]
OneGate = Annotated[
    Path | None,
    typer.Option(help="Plan for the gate in this JSON or TOML file instead of presets."),
]


@dataclass(frozen=True)
class _Assumed:
    """What the plan stands on."""

    pairs: ExpectedPairs
    seconds: float | None
    source: str | None


def plan(
    effect: Effect,
    power: Power = 0.8,
    from_run: FromRun = None,
    from_results: FromResults = None,
    differ: Differ = None,
    spread: Spread = None,
    worst_loss: WorstLoss = None,
    scenes: Scenes = None,
    pairs_per_scene: PairsPerScene = None,
    correlation: Correlation = None,
    seconds_per_pair: SecondsPerPair = None,
    looks: Looks = None,
    primaries: Primaries = 1,
    preset: PresetName = None,
    gate_file: OneGate = None,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Say how many pairs, scenes and hours it takes to show a gain, before anything is run.

    \b
    rollbook replay plan --effect 10points
    rollbook replay plan --effect 10points --from-run RUN
    rollbook replay plan --effect 0.3sd --worst-loss 4 --seconds-per-pair 40
    rollbook replay plan --effect 15points --pairs-per-scene 10 --correlation 0.3

    A gain that is smaller than --effect may be missed; a larger one takes fewer pairs. Pairs that differ cost: with
    --effect 10points, 199 pairs are needed if 30 % of the pairs differ and 134 if 20 % do. Pairs of one scene are
    alike, so more scenes help more than more pairs of a scene. --from-run takes all of this from an earlier run.

    With --looks the run is judged several times and may end early: it takes more pairs at most and fewer on average.
    The number of looks is written into the gate (looks = 3), because it has to be known before the run.
    """
    if not 0 < power < 1:
        raise _wrong("--power", power, "a number between 0 and 1")
    if from_run is not None and from_results is not None:
        raise ConfigurationError(message="--from-run and --from-results do not go together")
    if preset is not None and gate_file is not None:
        raise ConfigurationError(message="--preset and --gate-file do not go together")
    document = None
    if from_run is not None:
        document = _run_document(from_run, profile)
    elif from_results is not None:
        document = _file_document(from_results)
    given = _Given(
        differ, spread, worst_loss, scenes, pairs_per_scene, correlation, seconds_per_pair
    )
    given.check()
    assumed = _assumed(effect, given, document)
    if (looks or 1) > 1 and (scenes is not None or assumed.pairs.scene_size > 1):
        raise _looks_in_scenes()
    reward = assumed.pairs.differ is None
    rows = []
    for name, gate in _gates(preset, gate_file, reward=reward).items():
        gate = gate if looks is None else _with_looks(gate, looks)
        planned = _planned(assumed.pairs, gate, power, scenes, primaries)
        rows.append(_row(name, gate, planned, assumed, primaries))
    if as_json:
        print_json({"power": power, **_described(assumed), "plans": rows})
        return
    for line in _sentences(assumed, power):
        say(line)
    shown = [{**row, "time": _time(row["hours"])} for row in rows]
    print_rows(shown, _columns(rows), essential=2)
    if any(row["pairs"] is None for row in rows):
        say(_why_none(assumed, scenes))


# -------------------------------------------------------------------------------------------- asking


@dataclass(frozen=True)
class _Given:
    differ: float | None
    spread: float | None
    worst_loss: float | None
    scenes: int | None
    pairs_per_scene: float | None
    correlation: float | None
    seconds_per_pair: float | None

    def check(self) -> None:
        for option, value, least, most in (
            ("--differ", self.differ, 0.0, 1.0),
            ("--correlation", self.correlation, 0.0, 1.0),
        ):
            if value is not None and not least <= value <= most:
                raise _wrong(option, value, f"a number from {least:g} to {most:g}")
        for option, value in (
            ("--spread", self.spread),
            ("--worst-loss", self.worst_loss),
            ("--seconds-per-pair", self.seconds_per_pair),
        ):
            if value is not None and not 0 < value < math.inf:
                raise _wrong(option, value, "a number above 0")
        if self.pairs_per_scene is not None and not 1 <= self.pairs_per_scene < math.inf:
            raise _wrong("--pairs-per-scene", self.pairs_per_scene, "a number from 1")
        if self.scenes is not None and self.pairs_per_scene is not None:
            message = (
                "--scenes and --pairs-per-scene do not go together: the plan finds the other one"
            )
            raise ConfigurationError(message=message)

    def scenes_of(self, earlier: OutcomeSummary | None) -> dict[str, float]:
        """Size and correlation of scenes: as given, else as in the earlier run."""
        found = None if earlier is None else earlier.clusters
        size, correlation = self.pairs_per_scene, self.correlation
        if size is None:
            size = 1.0 if found is None or earlier is None else earlier.n_pairs / found.count
        if correlation is None:
            correlation = _USUAL_CORRELATION if found is None else found.correlation or 0.0
        return {"scene_size": max(1.0, size), "correlation": max(0.0, correlation)}


def _looks_in_scenes() -> ConfigurationError:
    message = (
        "--looks cannot be planned with scenes: an early look may have few pairs of each scene"
    )
    return ConfigurationError(message=message)


def _assumed(effect: str, given: _Given, document: Mapping[str, Any] | None) -> _Assumed:
    number, unit = _effect(effect)
    summary = None if document is None else _summary(document)
    if unit == "points":
        pairs = _expected_success(number / 100, given, summary)
    else:
        pairs = _expected_reward(number, unit, given, summary, document)
    seconds = given.seconds_per_pair
    if document is None:
        return _Assumed(pairs, seconds, None)
    named = document.get("id") or document.get("eval_run_id")
    seconds = _seconds(document) if seconds is None else seconds
    return _Assumed(pairs, seconds, "the earlier run" if named is None else f"run {named}")


def _expected_success(gain: float, given: _Given, summary: Rollup | None) -> ExpectedPairs:
    from rollbook.scoring.planning import ExpectedPairs

    if not 0 < gain <= 1:
        raise _wrong("--effect", f"{100 * gain:g}points", "more than 0points and at most 100points")
    outcome = None if summary is None else _measured(summary.success_rate, "success")
    differ = given.differ
    if differ is None:
        differ = (
            _USUAL_DIFFER if outcome is None else (outcome.wins + outcome.losses) / outcome.n_pairs
        )
    # a gain of ten points is only possible if at least ten in a hundred pairs differ
    return ExpectedPairs(effect=gain, differ=max(differ, gain), **given.scenes_of(outcome))


def _expected_reward(
    number: float,
    unit: str | None,
    given: _Given,
    summary: Rollup | None,
    document: Mapping[str, Any] | None,
) -> ExpectedPairs:
    from rollbook.scoring.planning import ExpectedPairs

    if not number > 0:
        raise _wrong("--effect", f"{number:g}", "a gain above 0")
    outcome = None if summary is None else _measured(summary.reward_mean, "reward")
    spread = given.spread
    if spread is None and document is not None:
        spread = _spread(document)
    if spread is None and unit == "sd":
        spread = 1.0
    if spread is None:
        message = (
            f"--effect {number:g} is in the unit of the reward, so the plan has to know how much pairs differ: give "
            "--spread or --from-run, or --effect in standard deviations (0.3sd)"
        )
        raise ConfigurationError(message=message)
    worst = given.worst_loss
    if worst is None and outcome is not None and outcome.worst_loss_declared:
        worst = outcome.worst_loss
    return ExpectedPairs(
        effect=number * spread if unit == "sd" else number,
        spread=spread,
        worst_loss=worst,
        **given.scenes_of(outcome),
    )


def _measured(outcome: Measured, name: str) -> Measured:
    if not outcome.n_pairs:
        message = f"the earlier run did not measure {name}; plan for another --effect"
        raise ConfigurationError(message=message)
    return outcome


def _effect(text: str) -> tuple[float, str | None]:
    found = _EFFECT.fullmatch(text)
    if found is None:
        raise _wrong("--effect", text, "a gain such as 10points, 0.3sd, or a number")
    number = float(found["number"])
    if not math.isfinite(number):
        raise _wrong("--effect", f"{text[:10]}…", "a gain that is not infinite")
    return number, found["unit"]


def _gates(preset: str | None, gate_file: Path | None, *, reward: bool) -> dict[str, Gate]:
    from rollbook.cli.replays.replay_arguments import gate_in
    from rollbook.contracts.gate_presets import GATE_PRESETS, gate_preset

    if gate_file is not None:
        return {gate_file.name: gate_in(gate_file)}
    names = GATE_PRESETS if preset is None else (preset,)
    return {name: gate_preset(name, reward=reward) for name in names}


def _with_looks(gate: Gate, looks: int) -> Gate:
    from msgspec.structs import replace as replaced

    return replaced(gate, looks=looks)


def _planned(
    pairs: ExpectedPairs, gate: Gate, power: float, scenes: int | None, primaries: int
) -> PlannedPairs | None:
    from rollbook.scoring.planning import plan_pairs, plan_scenes

    if gate.design == "sequential":
        message = (
            "a sequential run has no planned number of pairs; it ends when the bets have decided"
        )
        raise ConfigurationError(message=message)
    if scenes is not None:
        return plan_scenes(pairs, gate, scenes, power, primaries=primaries)
    return plan_pairs(pairs, gate, power, primaries=primaries)


def _wrong(option: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(message=f"{option} is {value}, expected {expected}")


# ----------------------------------------------------------------------------------- an earlier run


def _run_document(run_id: str, profile: str) -> dict[str, Any]:
    import msgspec

    from rollbook.cli.replays.replay_run import client_of
    from rollbook.contracts.wire.eval_runs import EvalRunAnswer
    from rollbook.evals.server_calls import ask, results_of, run_path

    with client_of(profile) as client:
        run = ask(client, EvalRunAnswer, "read the eval run", "GET", run_path(run_id))
        results = [{"metrics": each.metrics} for each in results_of(client, run_id, "complete")]
    return {**msgspec.to_builtins(run), "results": results}


def _file_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            message=f"--from-results {path} cannot be read: {error}"
        ) from error
    if not isinstance(document, dict):
        message = f"--from-results {path} is not what `rollbook replay run --json` prints"
        raise ConfigurationError(message=message)
    return document


def _summary(document: Mapping[str, Any]) -> Rollup:
    from rollbook.contracts.decision import Rollup

    try:
        return Rollup.from_wire(document.get("summary"))
    except MalformedJson as error:
        message = "the earlier run has no summary with statistics; plan from a completed run"
        raise ConfigurationError(message=message) from error


def _spread(document: Mapping[str, Any]) -> float | None:
    """Standard deviation of the gains of the complete pairs."""
    import numpy as np

    from rollbook.scoring.result_columns import numbers

    results = document.get("results")
    listed = results if isinstance(results, list) else []
    rows = [each.get("metrics") for each in listed if isinstance(each, Mapping)]
    blobs = [each for each in rows if isinstance(each, Mapping)]
    candidate, _ = numbers([each.get("reward_total_candidate") for each in blobs])
    baseline, _ = numbers([each.get("reward_total_baseline") for each in blobs])
    gains = candidate - baseline
    gains = gains[np.isfinite(gains)]
    spread = float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
    return spread if spread > 0 else None


def _seconds(document: Mapping[str, Any]) -> float | None:
    """Time per pair of an earlier run, with as many workers as it had."""
    try:
        begun, ended = (
            datetime.fromisoformat(document[key]) for key in ("created_at", "completed_at")
        )
        return (ended - begun).total_seconds() / float(document["episodes_completed"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # it is not known, and the plan says everything but the hours


# ------------------------------------------------------------------------------------------ printing


def _row(
    name: str, gate: Gate, planned: PlannedPairs | None, assumed: _Assumed, primaries: int
) -> dict[str, Any]:
    from rollbook.scoring.planning import first_run_level

    row: dict[str, Any] = {
        "gate": name,
        "pairs": None,
        "scenes": None,
        "mean_pairs": None,
        "hours": None,
        "looks": gate.looks,
        "level": first_run_level(gate) / primaries,
    }
    if planned is None:
        return row
    hours = None if assumed.seconds is None else planned.mean_pairs * assumed.seconds / 3600
    return {
        **row,
        "pairs": planned.pairs,
        "scenes": planned.scenes,
        "mean_pairs": round(planned.mean_pairs),
        "hours": None if hours is None else float(f"{hours:.2g}"),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Columns that say something in this plan."""
    headings = {"gate": "gate", "pairs": "pairs"}
    if any(row["scenes"] is not None for row in rows):
        headings["scenes"] = "scenes"
    if any(row["looks"] > 1 for row in rows):
        headings |= {"mean_pairs": "pairs on average", "looks": "looks"}
    if any(row["hours"] is not None for row in rows):
        headings["time"] = "time"
    return {**headings, "level": "level"}


def _time(hours: float | None) -> str | None:
    return None if hours is None else shown_duration(3600 * hours)


def _described(assumed: _Assumed) -> dict[str, Any]:
    pairs = assumed.pairs
    success = pairs.differ is not None
    return {
        "metric": "success" if success else "reward_total",
        "effect": pairs.effect,
        "differ": pairs.differ,
        "spread": None if success else pairs.spread,
        "worst_loss": pairs.loss,
        "worst_loss_declared": success or pairs.worst_loss is not None,
        "pairs_per_scene": pairs.scene_size,
        "correlation": pairs.correlation,
        "seconds_per_pair": assumed.seconds,
        "from": assumed.source,
    }


def _sentences(assumed: _Assumed, power: float) -> list[str]:
    pairs = assumed.pairs
    chance = f"ships with {power:.0%} probability"
    if pairs.differ is not None:
        won, lost = pairs.rates
        gain = f"A candidate with {100 * pairs.effect:+g} points of success {chance}"
        lines = [f"{gain}, if it wins {won:.0%} and loses {lost:.0%} of the pairs."]
    else:
        gain = f"A candidate with {pairs.effect:+g} of reward {chance}"
        lines = [f"{gain}, if gains have a standard deviation of {pairs.spread:g}."]
        loss = f"A pair loses at most {pairs.loss:g}"
        lines.append(
            f"{loss}: declare reward_range in the gate."
            if pairs.worst_loss is not None
            else f"{loss} (assumed). Declaring reward_range takes fewer pairs; without it, 150 are the least."
        )
    if pairs.scene_size > 1:
        lines.append(
            f"Scenes have {pairs.scene_size:g} pairs with a correlation of {pairs.correlation:.2g}."
        )
    if assumed.source is not None:
        lines.append(f"Numbers are those of {assumed.source}.")
    return lines


def _why_none(assumed: _Assumed, scenes: int | None) -> str:
    if scenes is not None:
        return (
            f"-: {scenes} scenes are not enough, however many pairs each has. "
            "--pairs-per-scene 10 instead of --scenes says how many scenes it takes."
        )
    return "-: not even 100 000 pairs are enough; plan for a larger --effect."
