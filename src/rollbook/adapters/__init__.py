"""Adapters: recordings of other tools become episodes. `from rollbook.adapters import gymnasium, lerobot`.

Every adapter has the same verbs. `scan_*` describes the recording. `encode_*` writes the files of an episode and needs
no network. `record` and `upload_*` encode, then hand the files to rollbook.client. An adapter is a module here with the
name of its format; it builds on `encoded` and `video`, and loads the libraries of its format on first use.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.adapters import gymnasium as gymnasium, lerobot as lerobot
    from rollbook.adapters.encoded import (
        BatchResult as BatchResult,
        EncodedEpisode as EncodedEpisode,
        EpisodeAbout as EpisodeAbout,
        RecordedRun as RecordedRun,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.adapters.encoded": (
                "BatchResult",
                "EncodedEpisode",
                "EpisodeAbout",
                "RecordedRun",
            ),
            "rollbook.adapters.gymnasium": (),
            "rollbook.adapters.lerobot": (),
        },
    )
