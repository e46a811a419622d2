"""Fields from files: every format, written and read back, every bad file with its sentence; sensors."""

from __future__ import annotations

import sys
import warnings
import zipfile

import numpy as np
import pytest
import torch

for name in ("h5py", "hypothesis", "rich", "typer", "xarray"):
    pytest.importorskip(name)
import h5py
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapc.cli.sample_files import read_condition
from sapc.data import Fields, read_fields, read_sensors, to_xarray, write_netcdf
from sapc.errors import SapcError, SapcWarning
from sapc.grid import Axis, Grid
from sapc.tasks import Dataset, get_task, load_dataset

KINDS = st.sampled_from(["periodic", "closed", "cells"])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return rng().standard_normal(shape)


@st.composite
def grids(draw):
    """Descriptions of grids; the test makes grids of them, since run-time types use random numbers."""
    steady = draw(st.booleans())
    names = [*"xyz"[: draw(st.integers(1, 3))], *(() if steady else ("time",))]
    axes = []
    for name in names:
        a, length = draw(st.floats(-1e3, 1e3)), draw(st.floats(1e-2, 1e3))
        axes.append(
            {"name": name, "n": draw(st.integers(3, 5)), "start": a, "stop": a + length, "kind": draw(KINDS)}
        )
    return {"axes": axes, "channels": ["h", "u", "v"][: draw(st.integers(1, 3))], "steady": steady}


@pytest.fixture
def grid():
    return Grid((Axis("x", 6, 0.0, 3.0, "periodic"), Axis("t", 4, 0.0, 1.5)), ("h", "u"))


def test_fields_are_shown_by_what_they_hold_without_their_values(grid):
    fields = Fields(noise(3, 2, 6, 4), grid)
    assert repr(fields) == "Fields(3 samples of h, u; x 6 (periodic), t 4 (closed))"


@pytest.fixture
def here(tmp_path):
    return tmp_path / "fields.nc"


def dataset(values=None, **coordinates):
    """Five samples on x and t, as a user might write them."""
    values = noise(5, 6, 4) if values is None else values
    coordinates = {"x": np.linspace(0, 1, 6), "t": np.arange(4.0)} | coordinates
    return xr.Dataset({"u": (("sample", "x", "t"), values)}, coordinates)


def save(path, data):
    data.to_netcdf(path, engine="h5netcdf")
    return path


def refused(path, *words, **how):
    with pytest.raises(SapcError) as error:
        read_fields(path, **how)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    for word in words:
        assert word in message, message


class TestRoundTrip:
    @settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(described=grids(), double=st.booleans())
    def test_grid_values_units(self, here, described, double):
        grid = Grid.from_dict(described)
        dtype = torch.float64 if double else torch.float32
        values = torch.randn(3, *grid.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
        units = {grid.channels[0]: "m s-1", grid.axes[-1].name: "s"}
        labels = {grid.channels[0]: "height"}
        write_netcdf(here, to_xarray(values, grid, units=units, labels=labels, quantiles=(0.1, 0.9)))
        back = read_fields(here, dtype=dtype)
        assert back.grid == grid
        assert torch.equal(back.values, values)
        assert (back.units, back.labels) == (units, labels)
        assert len(back) == 3

    def test_a_channel_without_a_name_is_u(self, here):
        grid = Grid((Axis("x", 5), Axis("t", 3)))
        write_netcdf(here, to_xarray(torch.randn(2, 5, 3), grid))
        assert read_fields(here).grid == Grid(grid.axes, ("u",))

    def test_part_of_a_file_has_its_own_grid(self, here, grid):
        data = to_xarray(torch.randn(4, *grid.shape), grid).isel(x=slice(1, 5))
        write_netcdf(here, data)
        assert read_fields(here, channels=["u"]).grid["x"] == Axis("x", 4, 0.5, 2.5, "periodic")

    def test_origin(self, here, grid):
        write_netcdf(here, to_xarray(torch.randn(4, *grid.shape), grid))
        origin = read_fields(str(here)).origin
        assert origin["path"] == str(here)
        assert len(origin["sha256"]) == 64

    def test_opens_with_plain_xarray(self, here, grid):
        values = torch.randn(4, *grid.shape)
        attributes = {"config": {"a": [1, True]}, "exact": True, "steps": 100, "title": "Waves"}
        write_netcdf(here, to_xarray(values, grid, units={"t": "s"}, attributes=attributes))
        with xr.open_dataset(here) as data:
            assert dict(data.sizes) == {"sample": 4, "x": 6, "t": 4}
            np.testing.assert_array_equal(data["h"], values[:, 0])
            assert data.attrs["Conventions"] == "CF-1.11"
            assert data.attrs["config"] == '{"a": [1, true]}'
            assert (data.attrs["exact"], data.attrs["title"]) == ("true", "Waves")
            assert (data["x"].attrs["axis"], data["t"].attrs["axis"]) == ("X", "T")
            assert data["t"].attrs["standard_name"] == "time"

    def test_statistics(self, grid):
        values = torch.randn(7, *grid.shape, dtype=torch.float64)
        data = to_xarray(values, grid, quantiles=(0.05, 0.5, 0.95), units={"u": "m"})
        u = values[:, 1].numpy()
        np.testing.assert_allclose(data["u_quantile"], np.quantile(u, (0.05, 0.5, 0.95), axis=0), rtol=1e-14)
        np.testing.assert_allclose(data["u_mean"], u.mean(0), rtol=1e-14)
        np.testing.assert_allclose(data["u_std"], values[:, 1].std(0), rtol=1e-12)
        assert data["u_std"].attrs["cell_methods"] == "sample: standard_deviation"
        assert data["u_mean"].attrs["units"] == "m"
        assert list(data["quantile"].values) == [0.05, 0.5, 0.95]

    def test_one_sample_has_no_statistics(self, grid):
        assert "u_mean" not in to_xarray(torch.randn(1, *grid.shape), grid)

    def test_bad_names_and_quantiles(self, grid):
        with pytest.raises(SapcError, match="between 0 and 1"):
            to_xarray(torch.randn(2, *grid.shape), grid, quantiles=(1.5,))
        for names in (("u", "u_mean"), ("sample", "u")):
            with pytest.raises(SapcError, match="rename"):
                to_xarray(torch.randn(2, *grid.shape), Grid(grid.axes, names))
        with pytest.raises(SapcError, match="slash"):
            to_xarray(torch.randn(2, *grid.shape), Grid(grid.axes, ("a/b", "u")))

    def test_nothing_is_left_of_a_write_that_fails(self, tmp_path, grid):
        data = to_xarray(torch.randn(2, *grid.shape), grid)
        with pytest.raises(SapcError, match="cannot write"):
            write_netcdf(tmp_path, data)
        assert list(tmp_path.iterdir()) == []


class TestFormats:
    def test_dimensions_in_any_order(self, here):
        values = noise(4, 6, 5, 5)
        data = xr.Dataset({"u": (("time", "x", "member", "y"), values)}, {"x": np.linspace(0, 1, 6)})
        found = read_fields(save(here, data), periodic=("x",), cells="y")
        assert found.grid.names == ("x", "y", "time")
        assert [a.kind for a in found.grid.axes] == ["periodic", "cells", "closed"]
        assert found.grid["x"].stop == pytest.approx(1.2)
        np.testing.assert_array_equal(found.values, values.transpose(2, 1, 3, 0).astype(np.float32))

    def test_names_said_by_the_caller(self, here):
        data = xr.Dataset({"u": (("a", "b", "c"), noise(4, 5, 6))})
        assert read_fields(save(here, data)).grid.steady
        found = read_fields(here, samples="c", time="a")
        assert (found.grid.names, len(found), found.grid.steady) == (("b", "a"), 6, False)
        assert read_fields(here, steady=False).grid.names == ("b", "c")
        refused(here, "'q'", time="q")
        refused(here, "no dimension 'q' for samples=; choose one of ", samples="q")
        refused(here, "cannot be samples and time", samples="a", time="a")
        refused(here, "no axis 'q'", "b, c", periodic=("q",))

    def test_time_by_its_cf_attributes(self, here):
        for attributes in ({"axis": "T"}, {"standard_name": "time"}):
            data = dataset().rename(t="day")
            data["day"].attrs = {**attributes, "units": "days since 2001-01-01"}
            found = read_fields(save(here, data))
            assert (found.grid.time.name, found.grid.time.stop) == ("day", 3.0)
            assert found.units == {"day": "days since 2001-01-01"}

    def test_frames_as_samples(self, here):
        data = xr.Dataset({"u": (("time", "y", "x"), noise(5, 4, 6))})
        refused(save(here, data), "no dimension of samples")
        found = read_fields(here, samples="time")
        assert (found.grid.names, found.grid.steady) == (("y", "x"), True)

    def test_decreasing_coordinates_are_turned_over(self, here):
        data = dataset(x=np.linspace(1, 0, 6))
        found = read_fields(save(here, data))
        assert found.grid["x"] == Axis("x", 6, 0.0, 1.0)
        np.testing.assert_array_equal(found.values, data["u"].values[:, ::-1].astype(np.float32))

    def test_kinds_by_attributes(self, here):
        data = dataset(x=np.arange(6) + 0.5)
        data["x"].attrs["sapc_kind"] = "cells"
        assert read_fields(save(here, data)).grid["x"] == Axis("x", 6, 0.0, 6.0, "cells")
        assert read_fields(here, periodic=("x",)).grid["x"] == Axis("x", 6, 0.5, 6.5, "periodic")
        data["x"].attrs = {"periodic": 1}
        assert read_fields(save(here, data)).grid["x"].kind == "periodic"
        data["x"].attrs = {"sapc_kind": "round"}
        refused(save(here, data), "'round'")

    def test_other_variables_are_no_channels(self, here):
        data = dataset()
        data["nu"], data["dt"] = ("sample", noise(5)), ((), 0.1)
        data["x_bnds"] = (("x", "nv"), noise(6, 2))
        data["v"] = (("sample", "x", "t"), rng().integers(0, 9, (5, 6, 4)))
        found = read_fields(save(here, data))
        assert found.grid.channels == ("u", "v")
        assert found.values.shape == (5, 2, 6, 4)
        assert read_fields(here, channels=("v",)).values.shape == (5, 6, 4)

    def test_bounds_of_coordinates_are_no_channels(self, here):
        data = xr.Dataset({"u": (("run", "x"), noise(5, 4)), "x_bnds": (("x", "nv"), noise(4, 2))})
        data["x"] = ("x", np.arange(4.0), {"bounds": "x_bnds"})
        assert read_fields(save(here, data)).grid == Grid((Axis("x", 4, 0.0, 3.0),), ("u",), steady=True)

    def test_netcdf_3(self, here):
        data = dataset()
        data["u"].attrs["units"] = "m"
        data["split"] = ("sample", np.array([b"train", b"train", b"train", b"validation", b"train"]))
        data.to_netcdf(here, engine="scipy", format="NETCDF3_64BIT")
        found = read_fields(here, dtype=torch.float64)
        np.testing.assert_array_equal(found.values, data["u"])
        assert found.units == {"u": "m"}
        assert found.grid.names == ("x", "t")
        assert [rows.tolist() for rows in found.split_rows()] == [[0, 1, 2, 4], [3]]

    def test_datasets_of_this_package(self, tmp_path):
        data = get_task("heat", grid=(12, 7)).dataset("train", size=4, seed=0)
        found = read_fields(data.save(tmp_path / "heat.h5"))
        assert torch.equal(found.values, data.fields)
        assert found.grid == Grid(data.grid.axes, ("u",))

    def test_datasets_of_several_channels(self, tmp_path, grid):
        values = torch.randn(3, *grid.shape)
        Dataset("waves", "train", 0, grid, values, {}).save(tmp_path / "waves.h5")
        found = read_fields(tmp_path / "waves.h5")
        assert torch.equal(found.values, values)
        assert found.grid == grid

    @pytest.mark.parametrize("words", [["train", "validation"], np.array([b"train", b"validation"])])
    def test_split_in_words(self, tmp_path, here, words):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"], file["split"] = noise(2, 6, 4), words
        assert read_fields(tmp_path / "a.h5", time="last").split == ("train", "validation")
        data = dataset(noise(2, 6, 4))
        data["split"] = ("sample", words)
        assert read_fields(save(here, data)).split == ("train", "validation")

    def test_hdf5_with_labels(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"] = noise(5, 4, 6).astype(np.float32)
            file["u"].attrs["units"] = "K"
            for dim, label in zip(file["u"].dims, ("t", "sample", "r"), strict=True):
                dim.label = label
            file["r"] = np.linspace(0, 2, 6)
            file["p"] = noise(5, 4, 6)
            file["p"].attrs["dims"] = ["t", "sample", "r"]
        found = read_fields(tmp_path / "a.h5")
        assert found.grid == Grid((Axis("r", 6, 0.0, 2.0), Axis("t", 5)), ("p", "u"))
        assert (len(found), found.units) == (4, {"u": "K"})

    def test_hdf5_with_scales(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"], file["x"] = noise(5, 6, 4), np.linspace(0, 2, 6)
            file["x"].make_scale("x")
            file["u"].dims[1].attach_scale(file["x"])
        found = read_fields(tmp_path / "a.h5", time="last")
        assert found.grid == Grid((Axis("x", 6, 0.0, 2.0), Axis("t", 4)), ("u",))

    def test_coordinates_of_another_length_than_their_dimension(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"], file["x"], file["t"] = noise(5, 6, 4), np.arange(7.0), np.arange(5.0)
            for dim, label in zip(file["u"].dims, ("sample", "x", "t"), strict=True):
                dim.label = label
        refused(tmp_path / "a.h5", "the coordinate 'x' has shape (7,)", "axis 'x'", "6 points")
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            del file["x"]
        with pytest.warns(SapcWarning, match="'t' has 5 times for 4 frames"):
            assert read_fields(tmp_path / "a.h5").grid.time == Axis("t", 4, 0.0, 3.0)


class TestUnnamed:
    """Arrays without names of dimensions, as plain HDF5 and npz have them."""

    @pytest.fixture(params=["npz", "h5"])
    def write(self, request, tmp_path):
        def write(**arrays):
            path = tmp_path / f"a.{request.param}"
            if request.param == "npz":
                np.savez(path, **arrays)
            else:
                with h5py.File(path, "w") as file:
                    for name, array in arrays.items():
                        file[name] = array
            return path

        return write

    def test_arrays_by_length(self, write):
        path = write(u=noise(5, 4, 6), x=np.linspace(0, 2, 6), t=np.arange(4.0), nu=noise(5))
        found = read_fields(path)
        assert found.grid == Grid((Axis("x", 6, 0.0, 2.0), Axis("t", 4, 0.0, 3.0)), ("u",))

    def test_equal_lengths_in_order(self, write):
        path = write(u=noise(5, 6, 6, 4), y=np.linspace(0, 3, 6), x=np.linspace(0, 2, 6), t=np.arange(4))
        assert [(a.name, a.stop) for a in read_fields(path).grid.axes] == [("x", 2.0), ("y", 3.0), ("t", 3.0)]

    def test_time_is_not_guessed(self, write):
        path = write(u=noise(5, 6, 6), x=np.linspace(0, 2, 6), t=np.linspace(0, 3, 6))
        refused(path, "which of dim_1, dim_2", "time='last'")
        found = read_fields(path, time="first")
        assert [(a.name, a.stop) for a in found.grid.axes] == [("x", 2.0), ("t", 3.0)]
        bare = write(u=noise(5, 6, 4))
        refused(bare, "which dimension", "steady=True")
        assert read_fields(bare, time="last").grid.names == ("x", "t")
        assert read_fields(bare, steady=False).grid.names == ("x", "t")
        assert read_fields(bare, steady=True).grid.names == ("x", "y")
        assert read_fields(bare, samples="dim_2", time="dim_1").grid.points_per_axis == (5, 6)

    def test_all_axes_known_is_steady(self, write):
        path = write(u=noise(5, 6, 4), **{"x-coordinate": np.arange(6.0), "depth": np.arange(4.0)})
        found = read_fields(path)
        assert (found.grid.names, found.grid.steady) == (("x", "depth"), True)

    def test_open_which_array_belongs_where(self, write):
        refused(write(u=noise(5, 6, 6, 4), x=np.arange(6), t=np.arange(4)), "open which belongs to which")

    def test_times_with_one_entry_more_than_frames(self, write):
        """As PDEBench writes them; without them time would be [0, 1]."""
        path = write(u=noise(5, 4, 6), **{"x-coordinate": np.arange(6.0), "t-coordinate": 5.0 * np.arange(5)})
        with pytest.warns(SapcWarning, match="'t-coordinate' has 5 times for 4 frames"):
            assert read_fields(path, time="first").grid.time == Axis("t", 4, 0.0, 15.0)

    @pytest.mark.parametrize(("name", "n"), [("t", 3), ("t", 6), ("t", 8), ("t", 1), ("x", 7), ("x", 5)])
    def test_coordinates_of_another_length(self, write, name, n):
        arrays = {"x": np.arange(6.0), "t": np.arange(4.0)} | {name: np.arange(float(n))}
        refused(write(u=noise(5, 6, 4), **arrays), f"the coordinate {name!r} has shape ({n},)", time="last")

    def test_parameters_with_names_of_coordinates(self, write):
        axes = {"x": np.arange(6.0), "y": np.arange(4.0)}
        found = read_fields(write(u=noise(5, 6, 4), **axes, t=np.arange(5.0) ** 2, z=np.array([0.3])))
        assert (found.grid.names, found.grid.steady) == (("x", "y"), True)
        refused(write(u=noise(5, 6, 4), **axes, z=np.arange(3.0)), "'z' has shape (3,)")

    def test_channels_of_different_shape(self, write):
        refused(write(u=noise(5, 6, 4), v=noise(5, 7, 4)), "different dimensions", "channels=('u',)")

    def test_split(self, write):
        arrays = {"u": noise(5, 6, 4), "x": np.arange(6), "t": np.arange(4)}
        assert read_fields(write(**arrays, split=np.array([0, 1, 0, 0, 1]))).split[:2] == (
            "train",
            "validation",
        )
        refused(write(**arrays, split=np.array([0, 1, 0, 0, 2])), "sample 4")
        refused(write(**arrays, split=np.array([0, 1])), "each of the 5 samples")

    def test_complex_and_text(self, write):
        refused(write(u=noise(5, 6, 4) + 1j), "complex")
        refused(write(u=np.array([[b"a", b"b"]])), "text")


class TestRefused:
    def test_no_file(self, tmp_path):
        refused(tmp_path / "none.nc", "there is no file")

    def test_damaged_files(self, tmp_path, here, grid):
        write_netcdf(here, to_xarray(torch.randn(20, *grid.shape), grid))
        whole = here.read_bytes()
        for name, content in (
            ("a.nc", whole[: len(whole) // 2]),
            ("b.nc", b"CDF\x01 nonsense"),
            ("c.nc", b"text"),
            ("d.nc", b""),
        ):
            (tmp_path / name).write_bytes(content)
            refused(tmp_path / name, "NetCDF, HDF5 or npz")
        np.savez(tmp_path / "e.npz", u=noise(9, 9, 9))
        broken = bytearray((tmp_path / "e.npz").read_bytes())
        broken[3000] ^= 255
        (tmp_path / "e.npz").write_bytes(broken)
        refused(tmp_path / "e.npz", "cannot be read", time="last")

    def test_damaged_chunk(self, here, grid):
        write_netcdf(here, to_xarray(torch.randn(200, *grid.shape), grid))
        with h5py.File(here) as file:
            at = file["u"].id.get_chunk_info(0).byte_offset
        broken = bytearray(here.read_bytes())
        broken[at : at + 64] = bytes(64)
        here.write_bytes(broken)
        refused(here, "cannot be read")

    def test_no_such_channel(self, here):
        refused(save(here, dataset()), "no channel 'w'", "it has u", channels=("w",))
        refused(here, "no field", channels=("x",))
        with pytest.raises(SapcError, match="each once"):
            read_fields(here, channels=())

    def test_different_dimensions(self, here):
        data = dataset()
        data["v"] = (("sample", "y", "t"), noise(5, 7, 4))
        refused(
            save(here, data), "different dimensions", "u (sample: 5, x: 6, t: 4)", "v (sample: 5, y: 7, t: 4)"
        )
        assert read_fields(here, channels=("v",)).grid.names == ("y", "t")

    def test_not_finite(self, here):
        values = noise(5, 6, 4)
        values[2, 3, 1] = np.nan
        values[4, 0, 0] = np.inf
        refused(save(here, dataset(values)), "'u' has 2 values", "sample=2, x=3, t=1")
        values = noise(5, 6, 4)
        values[1] = 1e200
        refused(save(here, dataset(values)), "24 values too large", "float64")
        assert read_fields(here, dtype=torch.float64).values.max() == 1e200

    def test_missing_values(self, here, tmp_path):
        data = dataset(rng().integers(1, 9, (5, 6, 4)).astype(np.int32))
        data["u"].values[3, 0, 2] = -99
        data["u"].attrs["_FillValue"] = np.int32(-99)
        refused(save(here, data), "1 values", "missing", "sample=3, x=0, t=2")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"] = data["u"].values
            file["u"].attrs["_FillValue"] = np.int32(-99)
        refused(tmp_path / "a.h5", "1 values", "missing", "dim_0=3", time="last")

    def test_one_sample(self, here):
        refused(save(here, dataset(noise(1, 6, 4))), "'sample' has 1 samples", "at least 2")

    def test_short_axis(self, here):
        refused(save(here, dataset(noise(5, 2, 4), x=[0.0, 1.0])), "axis 'x' has 2 points")

    def test_number_of_dimensions(self, here):
        data = xr.Dataset({"u": (("n", "a", "b", "c", "d"), noise(2, 3, 3, 3, 3))})
        refused(save(here, data), "4 spatial dimensions")
        refused(save(here, xr.Dataset({"u": (("n", "t"), noise(4, 4))})), "0 spatial dimensions")
        refused(save(here, xr.Dataset({"u": (("n",), noise(4))})), "no array of two or more")
        refused(
            save(here, xr.Dataset({"u": (("n", "channel", "x"), noise(4, 2, 4))})), "one variable per channel"
        )

    def test_steady_and_time(self, here):
        refused(save(here, dataset()), "time 't'", "steady=True", steady=True)
        with pytest.raises(SapcError, match="leave one of the two out"):
            read_fields(here, steady=True, time="t")

    def test_spacing(self, here):
        words = ("axis 'x'", "0.1", "0.4", "interpolate")
        refused(save(here, dataset(x=[0, 0.1, 0.2, 0.6, 0.8, 1.0])), *words)
        refused(save(here, dataset(x=[0, 0.4, 0.2, 0.6, 0.8, 1.0])), "axis 'x'", "-0.2")
        refused(save(here, dataset(x=[0, 0, 0, 0, 0, 0])), "axis 'x'", "from 0 to 0")
        refused(save(here, dataset(x=[0, 0.2, np.nan, 0.6, 0.8, 1.0])), "axis 'x'", "nan at index 2")
        refused(save(here, dataset(x=list("abcdef"))), "'x'", "numbers")
        save(here, dataset(x=np.linspace(0, 1, 6) + 1e-5 * noise(6)))
        assert read_fields(here).grid["x"].length == pytest.approx(1, abs=1e-3)

    def test_constant_channels(self, here):
        refused(save(here, dataset(np.full((5, 6, 4), 2.5))), "2.5 everywhere")
        save(here, dataset(np.repeat(noise(1, 6, 4), 5, axis=0)))
        with pytest.warns(SapcWarning, match="same in all 5 samples"):
            read_fields(here)

    def test_other_options(self, here):
        save(here, dataset())
        refused(here, "periodic and cells", periodic=("x",), cells=("x",))
        with pytest.raises(SapcError, match="float16"):
            read_fields(here, dtype=torch.float16)

    def test_without_xarray(self, here, grid, monkeypatch):
        save(here, dataset())
        monkeypatch.setitem(sys.modules, "xarray", None)
        with pytest.raises(SapcError, match=r"reading NetCDF needs xarray: pip install 'sapc\[data\]'"):
            read_fields(here)
        with pytest.raises(SapcError, match="writing NetCDF needs xarray"):
            to_xarray(torch.randn(2, *grid.shape), grid)


class TestForeign:
    """HDF5 files may name other files, and declare arrays without a byte of them."""

    @pytest.fixture
    def secret(self, tmp_path):
        path = tmp_path / "secret.bin"
        path.write_bytes(noise(5, 6, 4).tobytes())
        with h5py.File(tmp_path / "secret.h5", "w") as file:
            file["u"], file["g/u"] = noise(5, 6, 4), noise(5, 6, 4)
        return path

    def external_link(file, secret):
        file["u"] = h5py.ExternalLink("secret.h5", "/u")

    def link_inside_a_group(file, secret):
        file["u"] = h5py.SoftLink("/g/away/u")
        file["g/away"] = h5py.ExternalLink("secret.h5", "/g")

    def external_storage(file, secret):
        file.create_dataset("u", (5, 6, 4), "f8", external=[(str(secret), 0, 960)])

    def virtual(file, secret):
        layout = h5py.VirtualLayout((5, 6, 4), "f8")
        layout[:] = h5py.VirtualSource("secret.h5", "u", (5, 6, 4))
        file.create_virtual_dataset("u", layout)

    def as_coordinate(file, secret):
        file["u"] = noise(5, 6, 4)
        file["x"] = h5py.ExternalLink("secret.h5", "/u")

    KINDS = (external_link, link_inside_a_group, external_storage, virtual, as_coordinate)

    @pytest.mark.parametrize("make", KINDS, ids=lambda f: f.__name__)
    def test_no_other_file_is_read(self, tmp_path, secret, make):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            make(file, secret)
        with h5py.File(tmp_path / "a.h5") as file:
            # What h5py itself would read.
            assert file["u"].shape == (5, 6, 4)
        refused(tmp_path / "a.h5", "no other file is read", time="last")
        with pytest.raises(SapcError, match="no other file is read"):
            read_condition(tmp_path / "a.h5", get_task("heat", grid=(6, 4)))
        with pytest.raises(SapcError, match="no other file is read"):
            load_dataset(tmp_path / "a.h5")

    def test_no_other_file_is_read_as_netcdf(self, here, secret):
        save(here, dataset())
        with h5py.File(here, "r+") as file:
            file["v"] = h5py.ExternalLink("secret.h5", "/u")
        refused(here, "/v is a link to another file")

    def test_links_inside_a_file_are_fine_also_in_circles(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["g/u"] = noise(5, 6, 4)
            file["g/itself"] = file["g"]
            file["u"] = h5py.SoftLink("/g/itself/itself/u")
            file["g/soft"] = h5py.SoftLink("/g/soft")
        np.testing.assert_array_equal(
            read_fields(tmp_path / "a.h5", time="last").values, noise(5, 6, 4).astype(np.float32)
        )

    @pytest.mark.parametrize(
        ("shape", "how"),
        [
            ((2**18, 64, 64), {"chunks": (1024, 64, 64)}),
            ((2**18, 64, 64), {}),
            ((2**30, 2**30, 8), {"chunks": (1, 1024, 8)}),
            ((2**30, 2**20, 4), {}),
        ],
    )
    def test_declared_and_never_written(self, tmp_path, shape, how):
        """4 GiB and 2^63 numbers in a file of a few kB: told before any of it is allocated."""
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("u", shape, "f4", **how)
        refused(tmp_path / "a.h5", "nothing was ever written", time="last")
        with pytest.raises(SapcError, match="nothing was ever written"):
            read_condition(tmp_path / "a.h5", get_task("heat", grid=(6, 4)))

    def test_written_in_part(self, tmp_path, here):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("u", (4, 6, 4), "f4", chunks=(1, 6, 4))[:3] = noise(3, 6, 4)
        refused(tmp_path / "a.h5", "of /u (4 x 6 x 4) only 75 % was ever written", time="last")
        save(here, dataset())
        with h5py.File(here, "r+") as file:
            shape, attributes = file["u"].shape, dict(file["u"].attrs)
            del file["u"], attributes["DIMENSION_LIST"]
            new = file.create_dataset("u", shape, "f8", chunks=shape)
            new.attrs.update(attributes)
            for i, name in enumerate(("sample", "x", "t")):
                new.dims[i].attach_scale(file[name])
        refused(here, "of /u (5 x 6 x 4) nothing was ever written")

    def test_an_archive_declares_more_than_it_has(self, tmp_path):
        np.savez(tmp_path / "a.npz", u=noise(5, 6, 4))
        content = (tmp_path / "a.npz").read_bytes()
        lie = content.replace(b"'shape': (5, 6, 4), }         ", b"'shape': (99999, 99999, 99), }")
        with zipfile.ZipFile(tmp_path / "b.npz", "w") as file:
            start = lie.index(b"\x93NUMPY")
            file.writestr("u.npy", lie[start : start + 128 + 960])
        refused(tmp_path / "b.npz", "more than there is", time="last")

    def test_more_than_fits_into_memory(self, tmp_path):
        """2 TiB of zeros that take no room on the disk, but would in memory."""
        with h5py.File(tmp_path / "a.h5", "w") as file:
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((2**27, 64, 64))
            h5py.h5d.create(file.id, b"u", h5py.h5t.IEEE_F32LE, space, plan)
        refused(tmp_path / "a.h5", "not enough memory", "/u", time="last")

    def test_two_dimensions_of_one_name(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"] = noise(5, 6, 4)
            file["u"].attrs["dims"] = ["a", "a", "a"]
        refused(tmp_path / "a.h5", "same name", time="last")

    def test_scales_of_another_type(self, tmp_path):
        """HDF5's own functions end the process here."""
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["u"], file["x"] = noise(5, 6, 4), np.arange(6.0)
            file["u"].attrs["DIMENSION_LIST"] = np.zeros(3)
            file["x"].make_scale("x")
        assert read_fields(tmp_path / "a.h5", time="last").grid["x"].stop == 5.0


class TestSplit:
    def fields(self, n, split=None):
        grid = Grid((Axis("x", 3), Axis("t", 3)), ("u",))
        return Fields(torch.randn(n, 3, 3), grid, split=split)

    @pytest.mark.parametrize(("n", "held"), [(2, 1), (9, 1), (16, 2), (100, 10)])
    def test_seeded(self, n, held):
        train, validation = self.fields(n).split_rows()
        assert len(validation) == held
        assert sorted([*train.tolist(), *validation.tolist()]) == list(range(n))
        again = self.fields(n).split_rows()
        assert torch.equal(train, again[0])

    def test_seed_and_share(self):
        fields = self.fields(100)
        assert len(fields.split_rows(0.3)[1]) == 30
        assert not torch.equal(fields.split_rows(seed=1)[1], fields.split_rows()[1])
        with pytest.raises(SapcError, match="share"):
            fields.split_rows(1.0)

    def test_refused(self):
        with pytest.raises(SapcError, match="at least 2 samples"):
            self.fields(1).split_rows()
        with pytest.raises(SapcError, match="0 for validation"):
            self.fields(2, ("train", "train")).split_rows()
        with pytest.raises(SapcError, match="a split needs"):
            self.fields(2, ("train", "test"))


class TestSensors:
    @pytest.fixture
    def read(self, tmp_path, grid):
        def read(text, on=grid):
            (tmp_path / "s.csv").write_text(text)
            return read_sensors(tmp_path / "s.csv", on)

        return read

    def test_places(self, read):
        found = read("x,t,channel,value\n0.5,0.5,u,2\n3.0,0,h,-1.5\n")
        assert found.mask.sum() == 2
        assert found.values[0, 1, 1, 1] == 2
        # The end of a periodic axis is its start.
        assert found.values[0, 0, 0, 0] == -1.5
        assert found.max_offset == 0
        assert torch.equal(~found.values[0].isnan(), found.mask)

    def test_samples_and_one_channel(self, read):
        grid = Grid((Axis("x", 4, kind="cells"),), steady=True)
        found = read("\ufeffsample, x, value, name\n0,0.1,1,a\n0,.9,2,b\n\n1,0.9,3,b\n1,0.1,4,a\n", grid)
        np.testing.assert_array_equal(found.values, [[1, np.nan, np.nan, 2], [4, np.nan, np.nan, 3]])
        assert found.max_offset == pytest.approx(0.1)

    def test_far_from_a_point(self, read):
        with pytest.warns(SapcWarning, match=r"1 of 2 sensors .* at most 0\.40"):
            assert read("x,t,channel,value\n0.7,0,u,2\n0,0,h,1\n").max_offset == pytest.approx(0.4)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "an empty file"),
            ("x,t,value\n0,0,1\n", "names the columns x, t, value, channel"),
            ("x,t,channel,value\n", "no sensors"),
            ("x,t,channel,value\n0,0,u\n", "line 2: 3 entries for 4 columns"),
            ("x,t,channel,value\n0,0,q,1\n", "no channel 'q'; write h or u"),
            ("x,t,channel,value\n0,0,u,nan\n", "line 2: value is 'nan'"),
            ("x,t,channel,value\n0,one,u,1\n", "line 2: t is 'one'"),
            ("x,t,channel,value\n9,0,u,1\n", r"x = 9 is outside the domain \[0, 3\]"),
            ("x,t,channel,value\n0,0,u,1\n0.01,0,u,2\n", "line 3: another sensor"),
            ("x,t,channel,value,sample\n0,0,u,1,-1\n", "sample is '-1'"),
            ("x,t,channel,value,sample\n0,0,u,1,7\n", "without gaps"),
            (f"x,t,channel,value,sample\n0,0,u,1,{'9' * 5000}\n", "number the samples"),
            ("x,t,channel,value,sample\n0,0,u,1,0\n1,0,u,1,1\n", "same places"),
        ],
    )
    def test_refused(self, read, text, words):
        with pytest.raises(SapcError, match=words):
            read(text)

    def test_the_same_twice_is_one(self, read):
        assert read("x,t,channel,value\n0,0,u,1\n3,0,u,1\n").mask.sum() == 1

    def test_files(self, tmp_path, grid):
        with pytest.raises(SapcError, match="there is no file"):
            read_sensors(tmp_path / "none.csv", grid)
        (tmp_path / "a.csv").write_bytes(b"x,t\xff\xfe")
        with pytest.raises(SapcError, match="UTF-8"):
            read_sensors(tmp_path / "a.csv", grid)


def test_reading_warns_of_nothing_else(here, grid):
    write_netcdf(
        here,
        to_xarray(torch.randn(3, *grid.shape), grid, units={"t": "days since 2001-01-01", "h": "seconds"}),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_fields(here).units["h"] == "seconds"
