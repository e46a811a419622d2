"""Fields of your own: simulated or measured, read from files and written back into files.

data = sapc.read_fields("waves.nc", periodic=("x",))       # NetCDF, HDF5 or npz -> Fields
train, validation = data.split_rows()
sensors = sapc.read_sensors("gauges.csv", data.grid)       # CSV -> Sensors
sapc.data.write_netcdf("new.nc", sapc.to_xarray(samples, data.grid, units=data.units))
"""

from .fields import Fields
from .reading.read import read_fields
from .sensors import Sensors, read_sensors
from .writing import to_xarray, write_netcdf

__all__ = ["Fields", "Sensors", "read_fields", "read_sensors", "to_xarray", "write_netcdf"]
