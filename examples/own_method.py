"""A method of your own, in one file: SAPC with midpoint steps, second order where SAPC's Euler steps are first.

Run it (python examples/own_method.py), or hand it to any command: sapc --plugin examples/own_method.py compare heat --preset tiny
"""

import sys
import tempfile

import sapc
from sapc.flow import evaluate_velocity, expand_like, integrate, interpolate, predict_data, step_toward


# The letters: v0 data, v1 noise, vt the state at flow time t (1 is noise, 0 is data), v(vt, t) the network, H the manifold of fields
# that satisfy the constraints. All fields are tensors (batch, *grid).
def loss(v, v0, v1, t, H):
    """What training minimises for one batch: SAPC's regression, with a little more weight on times near the data."""
    v1 = H.approximate().project(v1)  # the source is anchored: it satisfies the constraints of its datum
    error = v(interpolate(v0, v1, t), t) - (v1 - v0)
    return (expand_like(1.5 - t, error) * error.square()).mean()


def sample(v, v1, H, steps=50):
    """From noise to fields that satisfy the constraints."""
    P = H.approximate().project  # on curved manifolds cut off after a few passes, enough on the way

    def step(vt, t, s):  # from time t down to s
        m = (t + s) / 2
        half = step_toward(
            vt, P(predict_data(vt, t, evaluate_velocity(v, vt, t))), t, m
        )  # half a step, as SAPC does it
        v0 = P(predict_data(half, m, evaluate_velocity(v, half, m)))  # where the flow leads from there
        return vt - (t - s) * (half - v0) / m  # the whole step, with the velocity of its middle

    return H.finish(integrate(step, P(v1), steps))  # the end is projected once more, not cut off


METHOD = sapc.Method(
    name="midpoint",  # what commands and files call it
    title="SAPC, midpoint",  # its label in reports
    loss=loss,
    sample=sample,
    weights="midpoint",  # it trains its own; "ffm" here would make it a sampler for FFM's weights, and its loss of no use
    exact="all",  # its samples satisfy all constraints, whatever the network
    nfe=2,  # evaluations of the network per step
    steps=50,
    loss_uses_manifold=True,  # the loss looks at H
    sampler_uses_manifold=True,  # the sampler does
)

if __name__ == "__main__":
    sapc.load_plugin(__file__)  # make it known, here and in processes that are started from here
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    for name in ("sapc", METHOD.name):
        model = sapc.train("heat", method=name, preset="tiny", out=f"{folder}/heat-{name}")
        scores = sapc.evaluate(model, splits=("test1",), samples=32, reference=64, floor_repeats=0)["mean"]
        residual = max(scores["worst_residual"].values())
        print(
            f"{name:10} W2 {scores['metrics']['w2']:.3f}   largest residual {residual:.0e}   NFE {scores['evaluations']}"
        )
        assert residual < 1e-12, "a sample is off its manifold"
