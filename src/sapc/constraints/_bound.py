"""Constraints bound to fields: pinned points with their values, and the values that rows must take."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ..errors import SapcError, order_advice, tensor_advice
from .terms import Affine, Balance, Constraint, ConstraintTerm, Pin


class Binding:
    """Constraints bound to a batch: pins and their values, laws, and the values that their rows must take.

    Attributes:
        parts: The constraints.
        pins_with_values: The pins that have values of their own.
        fields: The conditioning fields with these values, float64.
        shape: Shape of one field.
        index: Flat indices of the pinned points.
        full_frames: Number of frames without a free point.
        key: The mask as bytes, which tells masks apart without asking the device.
        pinned: Mask of the pinned points.
        free: One at free points and zero at pinned ones, float64.
        laws: The constraints that are no pins.
        targets: Values of the rows, `(batch or 1, rows)`.
        cache: Results computed once for all conditions of this grid and device.
    """

    def __init__(
        self, parts: tuple[ConstraintTerm, ...], fields: Tensor, targets: Tensor | None = None
    ) -> None:
        _check_fields(fields)
        if unknown := [p for p in parts if not isinstance(p, Pin | Balance | Constraint)]:
            raise SapcError(
                f"a manifold is made of Pin, Balance, Affine and Constraint, got {type(unknown[0]).__name__}"
            )
        self.parts = parts
        self.pins_with_values = tuple(p for p in parts if isinstance(p, Pin) and p.value is not None)
        self.fields = self._set_pin_values(fields.double())
        self.shape = tuple(fields.shape[1:])
        mask = torch.zeros(self.shape, dtype=torch.bool)
        for pin in parts:
            if isinstance(pin, Pin):
                mask |= pin.mask(self.shape)
        self.index = mask.flatten().nonzero()[:, 0].to(fields.device)
        self.full_frames = int(mask.reshape(-1, self.shape[-1]).all(0).sum())
        # Tells masks apart without asking the device.
        self.key = mask.numpy().tobytes()
        self.pinned = mask.to(fields.device)
        self.free = (~self.pinned).to(self.fields)
        self.laws = tuple(p for p in parts if isinstance(p, Balance | Constraint))
        self.targets = self._measure_targets() if targets is None else targets
        # What is computed once for all conditions of this grid and device.
        self.cache: dict[str, Any] = {}

    def rebind(self, fields: Tensor, targets: Tensor | None = None) -> Binding:
        """Bind the same constraints to other fields of this grid and device; share all that stays.

        Nothing is read back from the device, so values that are not finite, or that contradict those of a
        pin, are not noticed.

        Args:
            fields: Conditioning fields.
            targets: Values of the rows; None: measured where a constraint asks for those of its field.

        Returns:
            The new binding.

        Raises:
            SapcError: The fields are not floating-point, have another shape or device, or do not fit the
                number of values of a constraint.
        """
        if not isinstance(fields, Tensor) or not fields.is_floating_point():
            raise SapcError(f"conditions must be a floating-point tensor of fields, got {_kind(fields)}")
        if tuple(fields.shape[1:]) != self.shape or fields.device != self.fields.device or len(fields) == 0:
            raise SapcError(
                f"conditions of shape {tuple(fields.shape)} on {fields.device} cannot take the place of "
                f"fields (batch, {', '.join(map(str, self.shape))}) on {self.fields.device}; bind the "
                "constraint itself to them"
            )
        binding = copy(self)
        binding.fields = self._set_pin_values(fields.double())
        has_field_value = any(isinstance(law, Constraint) and isinstance(law.value, str) for law in self.laws)
        if targets is not None or has_field_value:
            binding.targets = binding._measure_targets() if targets is None else targets
        elif len(self.targets) not in (1, len(fields)):
            raise SapcError(
                f"a constraint's value has {len(self.targets)} rows for {len(fields)} conditions; give one "
                "row, or one per condition"
            )
        return binding

    def _set_pin_values(self, fields: Tensor) -> Tensor:
        """Write the values of pins that have their own."""
        for pin in self.pins_with_values:
            fields = pin.prescribe(fields)
        return fields

    def _measure_targets(self) -> Tensor:
        """Return what `measure` must equal; what a condition's own field shows counts as a constant."""
        with torch.no_grad():
            targets = [self._target(law) for law in self.laws]
        n_rows = max((len(t) for t in targets), default=1)
        if {len(t) for t in targets} - {1, n_rows} or n_rows not in (1, len(self.fields)):
            raise SapcError(
                f"a constraint's value has {n_rows} rows for {len(self.fields)} conditions; give one row, or "
                "one per condition"
            )
        return (
            torch.cat([t.expand(n_rows, -1) for t in targets], 1) if targets else self.fields.new_zeros(1, 0)
        )

    def _target(self, law: Balance | Constraint) -> Tensor:
        sample_rows = (
            law.residual(self.fields[:1]) if isinstance(law, Balance) else law.measure(self.fields[:1])
        )
        rows = sample_rows.shape[1]
        if rows == 0:
            raise SapcError("a constraint of 0 rows says nothing; leave it out")
        if isinstance(law, Balance):
            return torch.zeros_like(sample_rows)
        if isinstance(law.value, str):
            if law.value != "field":
                raise SapcError(
                    f'a constraint\'s value must be a number, a tensor or "field", got {law.value!r}'
                )
            return law.measure(self.fields)
        try:
            value = torch.as_tensor(law.value, dtype=torch.float64, device=self.fields.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SapcError(
                f'a constraint\'s value must be a number, a tensor or "field", got {type(law.value).__name__}'
            ) from error
        try:
            return value.broadcast_to((len(value) if value.ndim == 2 else 1, rows))
        except RuntimeError as error:
            raise SapcError(
                f"a constraint of {rows} rows was given a value of shape {tuple(value.shape)}"
            ) from error

    @property
    def affine(self) -> bool:
        """Whether every law is declared linear."""
        return all(
            law.is_linear if isinstance(law, Balance) else isinstance(law, Affine) for law in self.laws
        )

    def measure(self, u: Tensor) -> Tensor:
        """Evaluate the rows of all laws."""
        rows = [law.residual(u) if isinstance(law, Balance) else law.measure(u) for law in self.laws]
        return torch.cat(rows, 1) if rows else u.new_zeros(len(u), 0)

    def magnitude(self, u: Tensor) -> Tensor:
        """Return the sizes of the numbers whose difference each row of `measure` is; see `tolerance`."""
        rows = [law.magnitude(u) if isinstance(law, Balance) else law.measure(u).abs() for law in self.laws]
        return torch.cat(rows, 1) if rows else u.new_zeros(len(u), 0)

    def validate(self, u: Tensor) -> Tensor:
        """Refuse fields that do not fit the conditions, and return the others in float64.

        Args:
            u: Fields to work on.

        Returns:
            The fields in float64.

        Raises:
            SapcError: They are no floating-point tensor of this shape, number and device.
        """
        expected_shape = f"(batch, {', '.join(map(str, self.shape))})"
        if not isinstance(u, Tensor):
            raise SapcError(
                f"expected a tensor of fields {expected_shape}, got {type(u).__name__}; {tensor_advice(u)}"
            )
        if tuple(u.shape[1:]) != self.shape or u.ndim != len(self.shape) + 1 or not u.is_floating_point():
            raise SapcError(
                f"expected floating-point fields {expected_shape}, got {u.dtype} {tuple(u.shape)}"
                f"{order_advice(u.shape[1:], self.shape)}"
            )
        n = len(self.fields)
        if len(u) == 0 or (len(u) != n and n != 1):
            raise SapcError(
                f"{len(u)} fields for {n} conditions; give one condition per field, or a single one for all"
            )
        if u.device != self.fields.device:
            raise SapcError(
                f"the fields are on {u.device}, the conditions on {self.fields.device}; move one with "
                ".to(device)"
            )
        return u.double()


def _kind(x: object) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


def _check_fields(fields: Tensor) -> None:
    if not isinstance(fields, Tensor):
        raise SapcError(
            f"conditions must be a tensor of fields, got {type(fields).__name__}; {tensor_advice(fields)}"
        )
    if fields.ndim < 2 or not fields.is_floating_point() or fields.numel() == 0:
        raise SapcError(
            f"conditions must be floating-point fields (batch, *space, time), got {fields.dtype} "
            f"{tuple(fields.shape)}"
        )
    if bad := int((~fields.detach().flatten(1).isfinite().all(1)).sum()):
        raise SapcError(
            f"{bad} of {len(fields)} conditioning fields contain NaN or infinity; remove them first"
        )


def check_pins(parts: Sequence[ConstraintTerm], fields: Tensor) -> None:
    """Refuse pins that prescribe different values at one point.

    Pins without a value take the one of `fields` and so agree with each other. Two values agree up to 1e-6 of
    the larger one. A value agrees with `fields`, which were computed, packed and rounded, up to 1e-4 of the
    largest value with the same first index (that is, of the same channel) or 1e-5 of the largest value of the
    sample (eight units in the last place of their dtype, if that is more); the value then counts. NaN in
    `fields` is a value not given.

    Args:
        parts: The constraints.
        fields: Conditioning fields.

    Raises:
        SapcError: Two pins differ; it names both, how many points, and the largest difference.
    """
    pins = [part for part in parts if isinstance(part, Pin)]
    shape, u = tuple(fields.shape[1:]), fields.detach().double()
    masks = {pin: pin.mask(shape) for pin in pins}
    for i, pin in enumerate(pins):
        for earlier_pin in pins[:i]:
            overlap = masks[pin] & masks[earlier_pin]
            if (pin.value is None and earlier_pin.value is None) or not bool(overlap.any()):
                continue
            a, b = (p.prescribe(u)[:, overlap] for p in (pin, earlier_pin))
            is_open = pin.value is None or earlier_pin.value is None
            slack = _slack(u, fields.dtype, overlap) if is_open else 0.0
            difference = (a - b).abs()
            is_off = difference > torch.maximum(
                1e-6 * torch.maximum(a.abs(), b.abs()), torch.as_tensor(slack).to(difference)
            )
            if bool(is_off.any()):
                count = int(is_off.any(0).sum())
                raise SapcError(
                    f"the pins {earlier_pin.label!r} and {pin.label!r} prescribe different values at {count} "
                    f"point{'s'[: count - 1]}, by up to {float(difference[is_off].max()):.3g}; leave what "
                    "both hold out of one of them, as with t=slice(1, None), "
                    + (
                        "or give it the values of the conditioning fields"
                        if is_open
                        else "or give both the same value"
                    )
                )


def _slack(u: Tensor, dtype: torch.dtype, points: Tensor) -> Tensor:
    """Return how far a pin's value may be from that of fields in a dtype, at some points of every sample."""
    size = u.abs().nan_to_num(0.0, 0.0)
    channel_size = size.reshape(*size.shape[:2], -1).amax(2).reshape(*size.shape[:2], *(1,) * (size.ndim - 2))
    sample_size = size.flatten(1).amax(1)[:, None]
    share = max(1e-5, 8 * torch.finfo(dtype).eps)
    return torch.maximum(1e-4 * channel_size.expand_as(size)[:, points], share * sample_size)


def check_range(parts: Sequence[ConstraintTerm], fields: Tensor) -> None:
    """Refuse values of pins that the dtype of the fields cannot hold.

    Args:
        parts: The constraints.
        fields: Conditioning fields.

    Raises:
        SapcError: A pin prescribes a larger value.
    """
    limit = torch.finfo(fields.dtype).max
    for pin in parts:
        if isinstance(pin, Pin) and pin.value is not None:
            largest = float(torch.as_tensor(pin.value, dtype=torch.float64).abs().max())
            if largest > limit:
                raise SapcError(
                    f"the pin {pin.label!r} prescribes {largest:.3g}, more than {fields.dtype} can hold "
                    f"({limit:.3g}); give the fields in a wider dtype"
                )
