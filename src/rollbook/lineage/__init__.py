"""The walk from any record to what it was made of and to what was made of it, each link checked by digest.

`Shelf` holds the stores, sources, tables, batches and run folders of this machine, `resolve` finds the record that an
id means, and `walk` follows it in both directions. A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.lineage.record_ref import RecordRef as RecordRef
    from rollbook.lineage.report import (
        Check as Check,
        LineageReport as LineageReport,
        Link as Link,
        Node as Node,
    )
    from rollbook.lineage.resolve import resolve as resolve
    from rollbook.lineage.shelf import Places as Places, Shelf as Shelf
    from rollbook.lineage.walk import walk as walk
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.lineage.record_ref": ("RecordRef",),
            "rollbook.lineage.report": ("Check", "LineageReport", "Link", "Node"),
            "rollbook.lineage.resolve": ("resolve",),
            "rollbook.lineage.shelf": ("Places", "Shelf"),
            "rollbook.lineage.walk": ("walk",),
        },
    )
