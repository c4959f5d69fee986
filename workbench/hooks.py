"""Looking inside a pass and changing it: capture, intervene, capture gradients.

Every scope hangs its own hooks on TransformerLens HookPoints, removes exactly those when it ends (also after an
exception, also when scopes are nested), and refuses to end well if something it was asked for never happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from workbench.errors import WorkbenchError, unknown_name


@dataclass(frozen=True)
class Edit:
    """A change at one hook point.

    Attributes:
        point: the hook point's full name, ``"blocks.0.attn.hook_z"``.
        function: takes the activation, gives the one to continue with, of the same shape (a new tensor, or the
            same one edited in place).
        label: what the edit is called in errors.
    """

    point: str
    function: Callable[[Tensor], Tensor]
    label: str


@dataclass
class Firings:
    """On how many sequences each edit of a scope really took place, in the order of ``edits``."""

    edits: tuple[Edit, ...]
    sequences: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences = [0] * len(self.edits)

    @property
    def complete(self) -> int:
        """The number of sequences on which every edit took place (0 without edits)."""
        return min(self.sequences, default=0)

    def require_all(self) -> None:
        """Raise if an edit never took place: its result would equal the clean one and mean nothing."""
        silent = [e for e, n in zip(self.edits, self.sequences, strict=True) if n == 0]
        if silent:
            raise WorkbenchError(
                f"an intervention never took place: {silent[0].label} at {silent[0].point}",
                expected="at least one firing",
                got="0 firings",
                next_step="Run the model inside the scope, on a path that passes this hook point.",
            )


def hook_point(model: nn.Module, name: str) -> nn.Module:
    """The hook point of this name; an unknown one is an error with the nearest names.

    All access goes through here. It asks the model only for ``hook_dict``, which a TransformerBridge has too.
    """
    points: dict[str, Any] = model.hook_dict  # type: ignore[assignment]
    if name not in points:
        raise unknown_name("hook point", name, points)
    return points[name]


def _conversion(point: nn.Module) -> Any:
    """From what a point holds to what is seen there, and back; None where that is the same.

    A bridge's point may hold heads side by side in one axis: a plain hook on it would see, and edit, other shapes.
    """
    return getattr(point, "hook_conversion", None)


@contextmanager
def intervene(model: nn.Module, edits: Sequence[Edit]) -> Iterator[Firings]:
    """Within the scope, every explicit pass of the model is edited.

    Edits at one point apply in their order, after hooks that were already there.

    Yields:
        The count of firings, complete when the scope ends.

    Raises:
        WorkbenchError: an unknown hook point, an edit that returns something else than a tensor of the same shape, or
            (at the end of a scope without another exception) an edit that never fired.
    """
    firings = Firings(tuple(edits))
    points = [hook_point(model, edit.point) for edit in firings.edits]

    def hook(index: int, edit: Edit) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        conversion = _conversion(points[index])

        def run(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            seen = output if conversion is None else conversion.convert(output)
            shape = seen.shape
            edited = edit.function(seen)
            if not isinstance(edited, Tensor) or edited.shape != shape:
                got = tuple(edited.shape) if isinstance(edited, Tensor) else type(edited).__name__
                raise WorkbenchError(
                    f"edit {edit.label} at {edit.point} changed the activation's shape", expected=tuple(shape), got=got
                )
            firings.sequences[index] += shape[0]
            return edited if conversion is None else conversion.revert(edited)

        return run

    with ExitStack() as stack:
        for index, (point, edit) in enumerate(zip(points, firings.edits, strict=True)):
            stack.callback(point.register_forward_hook(hook(index, edit)).remove)
        yield firings
    firings.require_all()


@contextmanager
def capture(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the scope, the activations at these hook points are kept.

    Yields:
        Name -> a detached copy of the activation in the latest pass (after edits of scopes opened before this one);
        later edits in place cannot reach it.

    Raises:
        WorkbenchError: an unknown hook point, or (at the end) one that no pass has reached.
    """
    kept: dict[str, Tensor] = {}
    points = {name: hook_point(model, name) for name in names}

    def hook(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        conversion = _conversion(points[name])

        def run(module: nn.Module, inputs: Any, output: Tensor) -> None:
            kept[name] = (output if conversion is None else conversion.convert(output)).detach().clone()

        return run

    with ExitStack() as stack:
        for name, point in points.items():
            stack.callback(point.register_forward_hook(hook(name)).remove)
        yield kept
    _require_reached(points, kept, "activation")


@contextmanager
def capture_gradients(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the scope, ``backward()`` keeps the gradient with respect to the activations at these hook points.

    Yields:
        Name -> the gradient of the latest backward pass, in the activation's shape.

    Raises:
        WorkbenchError: an unknown hook point, or (at the end) one that no backward pass has reached.
    """
    kept: dict[str, Tensor] = {}
    points = {name: hook_point(model, name) for name in names}

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        conversion = _conversion(points[name])

        def run(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
            gradient = grad_output[0]
            kept[name] = (gradient if conversion is None else conversion.convert(gradient)).detach().clone()

        return run

    with ExitStack() as stack:
        for name, point in points.items():
            stack.callback(point.register_full_backward_hook(hook(name)).remove)
        yield kept
    _require_reached(points, kept, "gradient")


def _require_reached(points: dict[str, nn.Module], kept: dict[str, Tensor], what: str) -> None:
    missing = [name for name in points if name not in kept]
    if missing:
        raise WorkbenchError(
            f"no {what} came from hook point {missing[0]}",
            expected="a pass that reaches it inside the scope",
            got="none",
        )
