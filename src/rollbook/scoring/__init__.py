"""Pure numbers, shared by runner, server and portal: metrics of one episode, statistics of a run, ship or hold.

Numbers in, numbers out: nothing here reads files, asks a server, or imports zarr, torch or HTTP.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from rollbook.errors import ConfigurationError
from rollbook.lazy import lazy_names

if find_spec("scipy") is None:
    raise ConfigurationError(
        message="adding up results needs scipy, which is not installed: pip install 'rollbook[evals]'"
    )

if TYPE_CHECKING:
    from rollbook.contracts.decision import (
        Decision as Decision,
        PlainSummary as PlainSummary,
        Rollup as Rollup,
        read_summary as read_summary,
    )
    from rollbook.scoring.actions import stack_actions as stack_actions
    from rollbook.scoring.bounds.flip_bound import sign_flip as sign_flip
    from rollbook.scoring.intervals import (
        mean_interval as mean_interval,
        tango_interval as tango_interval,
        wilson_interval as wilson_interval,
    )
    from rollbook.scoring.metrics import (
        action_l2_distance as action_l2_distance,
        compare_actions as compare_actions,
        ood_action_share as ood_action_share,
        result_metrics as result_metrics,
    )
    from rollbook.scoring.observations import observation_table as observation_table
    from rollbook.scoring.outcomes import outcome_of as outcome_of
    from rollbook.scoring.paired_tests import mcnemar_exact as mcnemar_exact
    from rollbook.scoring.power import (
        pairs_for_mean as pairs_for_mean,
        pairs_for_non_inferiority as pairs_for_non_inferiority,
        pairs_for_superiority as pairs_for_superiority,
    )
    from rollbook.scoring.reference import ActionReference as ActionReference
    from rollbook.scoring.run_rollup import rollup as rollup
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.contracts.decision": ("Decision", "PlainSummary", "Rollup", "read_summary"),
            "rollbook.scoring.actions": ("stack_actions",),
            "rollbook.scoring.intervals": ("mean_interval", "tango_interval", "wilson_interval"),
            "rollbook.scoring.metrics": (
                "action_l2_distance",
                "compare_actions",
                "ood_action_share",
                "result_metrics",
            ),
            "rollbook.scoring.observations": ("observation_table",),
            "rollbook.scoring.outcomes": ("outcome_of",),
            "rollbook.scoring.bounds.flip_bound": ("sign_flip",),
            "rollbook.scoring.paired_tests": ("mcnemar_exact",),
            "rollbook.scoring.power": (
                "pairs_for_mean",
                "pairs_for_non_inferiority",
                "pairs_for_superiority",
            ),
            "rollbook.scoring.reference": ("ActionReference",),
            "rollbook.scoring.run_rollup": ("rollup",),
        },
    )
