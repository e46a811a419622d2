"""A method of your own, in one file: SAPC with midpoint steps, which are of second order.

Run it (python examples/own_method.py), or hand it to any command:
sapc --plugin examples/own_method.py compare heat --preset tiny
"""

import sys
import tempfile

import sapc
from sapc.flow import evaluate_velocity, expand_like, integrate, interpolate, predict_data, step_toward


# The letters: v0 data, v1 noise, vt the state at flow time t (1 is noise, 0 is data), v(vt, t) the network,
# H the manifold of fields that satisfy the constraints. All fields are tensors (batch, *grid).
def loss(v, v0, v1, t, H):
    """Return the loss of one batch: SAPC's regression, with a little more weight on times near the data."""
    # The source is anchored: it satisfies the constraints of its datum.
    v1 = H.approximate().project(v1)
    error = v(interpolate(v0, v1, t), t) - (v1 - v0)
    return (expand_like(1.5 - t, error) * error.square()).mean()


def sample(v, v1, H, steps=50):
    """Move noise to fields that satisfy the constraints."""
    # On curved manifolds the projection ends after a few passes, which is enough on the way.
    P = H.approximate().project

    def step(vt, t, s):
        """From time t down to s."""
        m = (t + s) / 2
        # Half a step, as SAPC does it, and where the flow leads from there.
        half = step_toward(vt, P(predict_data(vt, t, evaluate_velocity(v, vt, t))), t, m)
        v0 = P(predict_data(half, m, evaluate_velocity(v, half, m)))
        # The whole step, with the velocity of its middle.
        return vt - (t - s) * (half - v0) / m

    # The end is projected once more, to full tolerance.
    return H.finish(integrate(step, P(v1), steps))


METHOD = sapc.Method(
    # Its name in commands and files, and in reports.
    name="midpoint",
    title="SAPC, midpoint",
    loss=loss,
    sample=sample,
    # It trains its own weights; "ffm" would make it a sampler for those of FFM, without a loss.
    weights="midpoint",
    # Its samples satisfy all constraints, whatever the network.
    exact="all",
    # Evaluations of the network per step.
    nfe=2,
    steps=50,
    # Loss and sampler look at H.
    loss_uses_manifold=True,
    sampler_uses_manifold=True,
)

if __name__ == "__main__":
    # Make it known, here and in processes that are started from here.
    sapc.load_plugin(__file__)
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    for name in ("sapc", METHOD.name):
        model = sapc.train("heat", method=name, preset="tiny", out=f"{folder}/heat-{name}")
        scores = sapc.evaluate(model, splits=("test1",), samples=32, reference=64, floor_repeats=0)["mean"]
        residual = max(scores["worst_residual"].values())
        w2, nfe = scores["metrics"]["w2"], scores["evaluations"]
        print(f"{name:10} W2 {w2:.3f}   largest residual {residual:.0e}   NFE {nfe}")
        assert residual < 1e-12, "a sample is off its manifold"
