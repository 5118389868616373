"""Adapters: recordings of other tools become episodes, and episodes become datasets of other tools.

`from rollbook.adapters import gymnasium, lerobot` records and uploads from Python. Every format has an importer (a
dataclass with `scan` and `encode`, see `recording`). `importing` runs it: episodes go to a server or into folders, each
once. `exports` holds the way back, `formats` lists both. Libraries of a format are loaded on first use.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.adapters import gymnasium as gymnasium, lerobot as lerobot
    from rollbook.adapters.destination import (
        BatchResult as BatchResult,
        EpisodeAbout as EpisodeAbout,
        RecordedRun as RecordedRun,
    )
    from rollbook.adapters.encoded import EncodedEpisode as EncodedEpisode
    from rollbook.adapters.formats import (
        Detected as Detected,
        detect as detect,
        exporter as exporter,
        importer as importer,
    )
    from rollbook.adapters.importing import (
        ImportedEpisode as ImportedEpisode,
        ImportFolder as ImportFolder,
        ImportServer as ImportServer,
        import_recording as import_recording,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.adapters.destination": (
                "BatchResult",
                "EpisodeAbout",
                "RecordedRun",
            ),
            "rollbook.adapters.encoded": ("EncodedEpisode",),
            "rollbook.adapters.formats": (
                "Detected",
                "detect",
                "exporter",
                "importer",
            ),
            "rollbook.adapters.importing": (
                "ImportFolder",
                "ImportServer",
                "ImportedEpisode",
                "import_recording",
            ),
            "rollbook.adapters.gymnasium": (),
            "rollbook.adapters.lerobot": (),
        },
    )
