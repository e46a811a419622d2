"""Draw the pictures of the landing page into docs/images: `python docs/draw_cards.py`, ten seconds on two cores.

Backgrounds are transparent and lines are grey or coloured, so that the pictures suit light and dark pages.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import sapc

DOCS = Path(__file__).parent
GREY, BLUE, ORANGE, GREEN = "#8a8f98", "#2f7fd1", "#e07b28", "#2a9d6f"


def main():
    """Draw all pictures."""
    draw_samples()
    draw_own_pde()
    draw_guides()
    draw_manifold()
    draw_methods()
    draw_results()


def new_figure(columns=1):
    """Return a figure of 16:9 and its axes, without frames."""
    figure, axes = plt.subplots(1, columns, figsize=(4.8, 2.7), layout="constrained")
    for axis in np.atleast_1d(axes):
        axis.set_axis_off()
    return figure, axes


def save(figure, name):
    """Write docs/images/card-NAME.png."""
    figure.savefig(DOCS / "images" / f"card-{name}.png", dpi=150, transparent=True)
    plt.close(figure)


def draw_samples():
    """Draw samples of Heat at two times, and the initial condition that they share."""
    model = sapc.load("heat-sapc")
    condition = model.task.dataset("test1", size=1)
    fields = model.sample(n=12, condition=condition, steps=25, seed=0)
    figure, axis = new_figure()
    x = model.task.grid.axes[0].points
    for frame, alpha in ((20, 0.5), (60, 0.8)):
        axis.plot(
            x,
            fields[:, :, frame].T,
            color=BLUE if frame == 20 else ORANGE,
            lw=1,
            alpha=alpha,
        )
    axis.plot(x, fields[0, :, 0], color=GREY, lw=3)
    save(figure, "samples")


def draw_own_pde():
    """Draw the density of the traffic of the notebook over place and time."""
    x, frames = (np.arange(96) + 0.5) / 96, []
    rho = 0.2 + 0.5 * np.exp(-30 * np.sin(np.pi * (x - 0.35)) ** 2)
    dx, dt = 1 / 96, 1 / 4000
    for step in range(4000):
        if step % 25 == 0:
            frames.append(rho)
        after = np.roll(rho, -1)
        flow = (rho * (1 - rho) + after * (1 - after)) / 2 - 0.01 * (after - rho) / dx
        rho = rho - dt / dx * (flow - np.roll(flow, 1))
    figure, axis = new_figure()
    axis.imshow(np.stack(frames, 1), origin="lower", aspect="auto", cmap="viridis")
    save(figure, "own-pde")


def draw_guides():
    """Draw frames of a sample of Navier-Stokes."""
    field = sapc.get_task("navier_stokes").dataset("test1", size=1).fields[0]
    figure, axes = new_figure(3)
    for axis, frame in zip(axes, (0, 20, 49), strict=True):
        axis.imshow(field[..., frame], aspect="auto", cmap="RdBu_r")
    save(figure, "guides")


def draw_manifold():
    """Draw a manifold in the plane, a draw of the source, its projection and the path of the flow."""
    s = np.linspace(-1.6, 1.6, 200)
    curve = lambda s: (s, 0.35 * np.sin(1.6 * s) + 0.1 * s)
    figure, axis = new_figure()
    axis.plot(*curve(s), color=GREEN, lw=3)
    source, anchor, data = (1.35, 1.15), curve(1.05), curve(-1.25)
    arrow = {"arrowstyle": "-|>", "lw": 2, "shrinkA": 4, "shrinkB": 4}
    axis.annotate("", anchor, source, arrowprops=arrow | {"color": GREY, "ls": "--"})
    axis.annotate("", data, anchor, arrowprops=arrow | {"color": BLUE})
    for point, label, color, shift in (
        (source, "$v_1$", GREY, (0.06, 0.02)),
        (anchor, "$P(v_1)$", BLUE, (0.08, -0.2)),
        (data, "$v_0$", BLUE, (-0.08, 0.14)),
    ):
        axis.plot(*point, "o", color=color, ms=8)
        axis.text(
            point[0] + shift[0], point[1] + shift[1], label, color=color, fontsize=15
        )
    axis.text(0.1, -0.22, "$H$", color=GREEN, fontsize=16)
    axis.set(xlim=(-1.8, 2), ylim=(-0.75, 1.4))
    save(figure, "manifold")


def draw_methods():
    """Draw noise on the left, and the same noise on the manifold of a solution of Heat on the right."""
    task = sapc.get_task("heat", grid=(50, 40))
    noise = sapc.source.sample(
        task.grid, 1, generator=torch.Generator().manual_seed(0)
    ).double()
    H = task.manifold(task.dataset("test1", size=1).fields)
    figure, axes = new_figure(2)
    for axis, field in zip(axes, (noise, H.project(noise)), strict=True):
        axis.imshow(
            field[0, :, :16].T,
            origin="lower",
            aspect="auto",
            cmap="RdBu_r",
            vmin=-2,
            vmax=2,
        )
    save(figure, "methods")


def draw_results():
    """Draw W2 of FFM and SAPC, models that come with the package, over the sampling floor, for each task."""
    figure, axis = new_figure()
    folder = DOCS.parent / "src" / "sapc" / "models" / "pretrained"
    for i, task in enumerate(sapc.task_names()):
        scores = {
            m: json.loads((folder / f"{task}-{m}" / "scores.json").read_text())
            for m in ("ffm", "sapc")
        }
        floor = scores["sapc"]["mean"]["floor"]["w2"]
        values = [scores[m]["mean"]["metrics"]["w2"] / floor for m in ("ffm", "sapc")]
        axis.plot((1, max(values)), (-i, -i), color=GREY, lw=1, alpha=0.6)
        for value, color in zip(values, (ORANGE, BLUE), strict=True):
            axis.plot(value, -i, "o", color=color, ms=9)
    axis.axvline(1, color=GREEN, lw=3)
    axis.set_xscale("log")
    axis.text(1.15, 0.75, "floor", color=GREEN, fontsize=13)
    axis.text(3, 0.75, "SAPC", color=BLUE, fontsize=13)
    axis.text(40, 0.75, "FFM", color=ORANGE, fontsize=13)
    axis.set_ylim(-5.6, 1.5)
    save(figure, "results")


if __name__ == "__main__":
    main()
