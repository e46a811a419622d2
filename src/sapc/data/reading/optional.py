"""xarray, which only NetCDF needs: imported when it is used, so that the package works without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import SapcError

if TYPE_CHECKING:
    from xarray import Dataset as Dataset
else:  # annotations are read at run time in tests; importing xarray takes a second
    Dataset = Any


def xarray(what: str) -> Any:
    """The module, or an error that says how to get it."""
    try:
        import h5netcdf  # noqa: F401 (its engine for NetCDF-4)
        import xarray as found
    except ImportError as error:
        raise SapcError(f"{what} NetCDF needs xarray: pip install 'sapc[data]'") from error
    return found
