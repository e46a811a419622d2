"""The derivative of a feasible point: exact near the manifold, of the path taken far from it, the same on
every path of the code.
"""

import pytest
import torch
from test_projection import AFFINE, CURVED, noise, relative, tiny_fields, tiny_task

import sapc
from sapc.constraints.projection.feasible import EagerPasses, restore
from sapc.flow.path import expand_like

FEASIBLE = sapc.FeasiblePoint()
APPROXIMATE_PASSES = [lambda H: H, lambda H: H.approximate(), lambda H: H.approximate(ahead=True)]


def small(name, n=2):
    """A grid on which a full Jacobian by finite differences is cheap."""
    task = sapc.get_task(name, grid=(4, 4))
    f = tiny_fields(task, n)
    return task.manifold(f, solver=FEASIBLE), f


def far(name, n=6, solver=FEASIBLE):
    """White noise small against the conditions: on Stokes the first steps are damped there."""
    task = tiny_task(name)
    f = tiny_fields(task, n)
    return task.manifold(f, solver=solver), (0.1 * noise(f.shape)).requires_grad_()


def pull_back(H, u, w):
    """The vector-Jacobian product of the projection."""
    return torch.autograd.grad((H.project(u, check=False) * w).sum(), u)[0]


def path_of(H, u):
    """The passes that lead from `u` to the projection, as shares of all samples: `(passes, batch)`."""
    solver, path = H.solver, []
    start = torch.where(H.pinned, H.fields, u.detach())
    restore(EagerPasses(H._problem(), solver), start, solver, path)
    all_rows = torch.arange(len(u))
    shares = torch.zeros(len(path), len(u), dtype=u.dtype)
    for k, step in enumerate(path):
        shares[k, all_rows if step.rows is None else step.rows] = step.alpha
    return shares


def unroll(H, u):
    """The same passes in plain operations, step lengths as recorded."""
    problem, v = H._problem(), torch.where(H.pinned, H.fields, u)
    for alpha in path_of(H, u):
        lin = problem.linearise(v, graph=True)
        v = torch.where(expand_like(alpha > 0, v), v - expand_like(alpha, v) * lin.normal_step(lin.rows), v)
    return v


def test_gradient_near_the_manifold_is_that_of_the_map():
    """Entry by entry; the next test has every task, in random directions of fields and pinned values at once,
    which is quicker.
    """
    H, f = small("stokes_bc", 1)
    u = (f + 0.02 * noise(f.shape)).requires_grad_()
    shares = path_of(H, u)
    assert bool(((shares == 0) | (shares == 1)).all()), "steps are full"
    assert torch.autograd.gradcheck(
        lambda u: H.project(u, check=False), u, atol=1e-6, rtol=1e-4, check_undefined_grad=False
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", CURVED)
def test_gradient_in_fields_and_pinned_values(name, dense):
    H, f = small(name)

    def project(u, pinned):
        rebound = H.rebind(pinned)
        return (rebound.dense() if dense else rebound).project(u, check=False)

    u = (f + 0.02 * noise(f.shape)).requires_grad_()
    assert torch.autograd.gradcheck(
        project, (u, f.clone().requires_grad_()), atol=1e-6, rtol=1e-4, fast_mode=True
    )


@pytest.mark.parametrize("name", CURVED)
def test_gradient_on_the_manifold_is_the_tangent_part(name):
    """No step is taken there, but the map around the point is a projection all the same."""
    H, f = small(name, 3)
    p = H.project(f + 0.02 * noise(f.shape))
    assert bool((H.solve(p)[1].iterations == 0).all())
    w = noise(p.shape, 1)
    want = H.dense()._problem().linearise(p).tangent(w * ~H.pinned)
    for M in (H, H.dense(), H.approximate(ahead=True)):
        assert relative(pull_back(M, p.clone().requires_grad_(), w), want) < 1e-9
    batch = torch.cat((p[:1], p[1:] + 0.01)).requires_grad_()
    assert relative(pull_back(H, batch, w)[:1], want[:1]) < 1e-9
    out = H.project(p.requires_grad_())
    # Writing into the result spoils nothing that the derivative needs.
    out += 1.0
    out.sum().backward()


@pytest.mark.parametrize("name", CURVED)
def test_banded_gradient_equals_dense(name):
    task = tiny_task(name)
    f = tiny_fields(task, 3)
    H, w = task.manifold(f, solver=FEASIBLE), noise(f.shape, 7)
    for u in (f + 0.05 * noise(f.shape), 0.1 * noise(f.shape)):
        u.requires_grad_()
        fast = pull_back(H, u, w)
        assert relative(fast, pull_back(H.dense(), u, w)) < 1e-8
        assert fast[H.pinned.expand_as(fast)].abs().max() == 0


@pytest.mark.parametrize("cut", APPROXIMATE_PASSES)
@pytest.mark.parametrize("name", CURVED)
def test_gradient_from_afar_is_that_of_the_path_with_its_lengths_held_fixed(name, cut):
    H, u = far(name)
    H, w = cut(H), noise(u.shape, 7)
    shares = path_of(H, u)
    # There the first step is as good as exact.
    if name != "reaction_diffusion":
        assert bool(((shares > 0) & (shares < 1)).any()), "steps are damped"
    reference = unroll(H, u)
    assert relative(H.project(u, check=False).detach(), reference.detach()) < 1e-9
    assert relative(pull_back(H, u, w), torch.autograd.grad((reference * w).sum(), u)[0]) < 1e-8


def test_only_the_attempt_that_gave_the_result_counts():
    """Five passes are too few for most; some get nearer when they try again, and their first attempt must
    leave no trace.
    """
    H, u = far("stokes_ic", 24, sapc.FeasiblePoint(passes=5, patience=0))
    w = noise(u.shape, 7)
    shares = path_of(H, u)
    first, retried = (shares[:5] > 0).any(0), (shares[5:] > 0).any(0)
    assert len(shares) > 5
    assert bool(first.any() & retried.any())
    assert not bool((first & retried).any())
    reference = unroll(H, u)
    assert relative(H.project(u, check=False).detach(), reference.detach()) < 1e-9
    assert relative(pull_back(H, u, w), torch.autograd.grad((reference * w).sum(), u)[0]) < 1e-8


def test_the_path_of_a_long_attempt_is_walked_back_too():
    """Five passes are too few, twice; what counts is the path of the attempt that got there, in the same bits
    with and without gradient.
    """
    H, u = far("stokes_ic", 12, sapc.FeasiblePoint(passes=5, patience=80))
    w = noise(u.shape, 7)
    got, report = H.solve(u)
    assert int((report.iterations > 2 * 5).sum()) >= 3
    assert bool(report.converged.all())
    with torch.no_grad():
        assert torch.equal(got, H.project(u))
    reference = unroll(H, u)
    assert relative(got.detach(), reference.detach()) < 1e-9
    assert relative(pull_back(H, u, w), torch.autograd.grad((reference * w).sum(), u)[0]) < 1e-8


@pytest.mark.parametrize("cut", APPROXIMATE_PASSES)
@pytest.mark.parametrize("name", CURVED)
def test_values_are_the_same_bits_with_and_without_gradient(name, cut):
    H, u = far(name, 16)
    H = cut(H)
    for M in (H, H[:3].dense()):
        v = u[: len(M)]
        with torch.no_grad():
            want, before = M.solve(v)
        got, report = M.solve(v)
        assert got.requires_grad
        assert torch.equal(got, want)
        assert torch.equal(M.project(v, check=False), want)
        assert torch.equal(report.iterations, before.iterations)
        assert torch.equal(report.residual, before.residual)
        assert not report.residual.requires_grad


def test_nothing_is_kept_unless_somebody_wants_the_gradient(monkeypatch):
    H, u = far("stokes_ic", 2)

    def refuse(*_):
        raise AssertionError("a path was kept")

    monkeypatch.setattr(sapc.constraints.projection.feasible, "_share_of_step", refuse)
    H.project(u.detach(), check=False)
    with torch.no_grad():
        H.project(u, check=False)
    with pytest.raises(AssertionError, match="kept"):
        H.project(u, check=False)


@pytest.mark.parametrize(
    ("name", "dense"), [("reaction_diffusion", True), ("stokes_ic", False), ("stokes_bc", True)]
)
def test_gradients_of_samples_do_not_influence_each_other(name, dense, monkeypatch):
    H, u = far(name, 3)
    H, w = H.dense() if dense else H, noise(u.shape, 7)
    together = pull_back(H, u, w)
    alone = [pull_back(H[i], u[i : i + 1].detach().requires_grad_(), w[i : i + 1]) for i in range(3)]
    assert relative(together, torch.cat(alone)) < 1e-10
    spoilt = u.detach().clone()
    spoilt[1, 1, 2] = torch.nan
    others = torch.tensor([0, 2])
    assert relative(pull_back(H, spoilt.requires_grad_(), w)[others], together[others]) < 1e-10
    # On a device no sample is left out of a pass: one that rests is worked on with the others, whatever it
    # holds.
    passes, alphas = EagerPasses(H._problem(), H.solver), torch.tensor([1.0, 0.0, 1.0], dtype=u.dtype)
    batch = passes.pullback(spoilt.detach(), alphas, w)
    assert relative(batch[others], passes.pullback(u.detach(), torch.ones_like(alphas), w)[others]) < 1e-10
    assert torch.equal(batch[1], w[1])
    monkeypatch.setattr(sapc.constraints.manifold, "CACHE_BYTES", 1)
    monkeypatch.setattr(sapc.constraints.manifold, "JACOBIAN_BYTES", 1)
    # Portions of one sample.
    assert relative(pull_back(H, u, w), together) < 1e-10


@pytest.mark.parametrize("cut", APPROXIMATE_PASSES)
@pytest.mark.parametrize("name", CURVED)
def test_float32_fields_get_float32_gradients(name, cut):
    H, u = far(name, 2)
    H, w, single = cut(H), noise(u.shape, 7), u.detach().float().requires_grad_()
    got = pull_back(H, single, w.float())
    assert got.dtype == torch.float32
    assert relative(got, pull_back(H, single.detach().double().requires_grad_(), w).float()) < 1e-5


def test_the_derivative_cannot_be_differentiated_again_silently():
    H, u = far("reaction_diffusion", 1)
    (slope,) = torch.autograd.grad(H.project(u).square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_a_law_that_no_free_point_can_change_passes_the_gradient_on():
    """Every row is without gradient, so no step moves the field, and the identity is the derivative."""
    f = noise((2, 6, 5), 1)
    law = sapc.Pin.frame(0) & sapc.Balance(lambda u: torch.arange(5, dtype=u.dtype).expand(len(u), 5))
    for H in (law.on(f, solver=FEASIBLE), law.on(f, solver=FEASIBLE).dense()):
        u, w = noise(f.shape, 2).requires_grad_(), noise(f.shape, 3)
        assert torch.equal(pull_back(H, u, w), torch.where(H.pinned, 0.0, w))


@pytest.mark.parametrize("name", CURVED)
def test_a_loss_through_the_projection_falls_along_its_gradient(name):
    """The loss compares `(vt - P(vt - t v)) / t` with a target velocity, t = 1/2; a small step must bring
    what its slope promises.
    """
    task = tiny_task(name)
    f = tiny_fields(task, 4)
    H, t = task.manifold(f, solver=FEASIBLE).approximate(), 0.5
    vt, target = f + 0.1 * noise(f.shape), 0.2 * noise(f.shape, 1)
    v = (0.2 * noise(f.shape, 2)).requires_grad_()

    def loss(v):
        return ((vt - H.project(vt - t * v, check=False)) / t - target).square().mean()

    before = loss(v)
    (slope,) = torch.autograd.grad(before, v)
    decrease = 1e-4 * float(before.detach())
    step = decrease / float(slope.square().sum())
    after = loss(v.detach() - step * slope)
    assert float(before.detach() - after) == pytest.approx(decrease, rel=0.05)


@pytest.mark.parametrize("name", AFFINE)
def test_gradient_of_affine_manifolds_equals_dense(name):
    task = tiny_task(name)
    f = tiny_fields(task, 3)
    H = task.manifold(f, solver=FEASIBLE)
    u, w = noise(f.shape).requires_grad_(), noise(f.shape, 7)
    fast = pull_back(H, u, w)
    assert relative(fast, pull_back(H.dense(), u, w)) < 1e-10
    assert relative(fast, pull_back(H.approximate(ahead=True), u, w)) == 0
