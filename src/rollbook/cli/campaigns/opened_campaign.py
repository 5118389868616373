"""The argument CAMPAIGN of `rollbook campaign …`, and the campaign that it names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder

Campaign = Annotated[
    Path, typer.Argument(metavar="CAMPAIGN", help="Folder that `rollbook campaign plan` wrote.")
]


def opened_campaign(folder: Path) -> CampaignFolder:
    """The campaign, with policies of the user, module:attr, found in the current folder."""
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder

    if not folder.exists():
        message = (
            f"there is nothing at {folder}; name the folder that `rollbook campaign plan` wrote"
        )
        raise ConfigurationError(message=message)
    sys.path.append(str(Path.cwd()))
    return CampaignFolder.open(folder)
