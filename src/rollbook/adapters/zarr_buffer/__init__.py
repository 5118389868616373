"""Zarr buffers: the replay buffers of Diffusion Policy and UMI, as a folder or as a zip file."""

from rollbook.adapters.zarr_buffer.importer import (
    FORMAT as FORMAT,
    ZarrBufferImporter as ZarrBufferImporter,
    looks_like as looks_like,
)
