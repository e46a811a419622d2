from sapc.experiments import cells

runs = cells(
    ["heat"],
    ["sapc", "ffm", "eci"],
    preset="tiny",
    sets=("test0", "test1"),
    samples=4,
    sampling_steps=3,
    reference=8,
    floor_repeats=1,
    watch=3,
)
