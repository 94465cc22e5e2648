"""The part of a parameter that this process holds: all of it, or the rows that FSDP2's ``fully_shard`` has left here.

A sharded parameter is a DTensor. Everything this package keeps of it (masks, averages, optimizer state) is kept for the
local rows alone; a position in the local tensor plus ``Part.start`` is the position in the whole tensor, by which
random numbers are drawn and ties are broken. So any number of processes comes to the same masks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError


@dataclass(frozen=True)
class Part:
    """Where the local rows begin, and with which processes they make up the whole tensor."""

    start: int = 0  # the position of the first local element in the whole tensor
    group: Any = None  # the process group that the tensor is divided over; None: this process has all of it
    device: torch.device | None = None  # that the group communicates from

    def to_global(self, positions: Tensor) -> Tensor:
        """Local positions as positions in the whole tensor."""
        return positions + self.start if self.start else positions


WHOLE = Part()


def all_reduce(part: Part, numbers: Tensor) -> Tensor:
    """The sum of a small tensor over the processes."""
    if part.group is not None:
        numbers = numbers.to(part.device)
        torch.distributed.all_reduce(numbers, group=part.group)
    return numbers


def all_reduce_rows(parts: Sequence[Part], rows: Tensor) -> Tensor:
    """A few numbers of each tensor, summed over the processes that hold it, which must all call it: one message."""
    if any(part.group is not None for part in parts):
        rows = rows.clone()
    for group in {id(part.group): part.group for part in parts if part.group is not None}.values():
        members = [place for place, part in enumerate(parts) if part.group is group]
        rows[members] = all_reduce(parts[members[0]], rows[members]).to(rows.device)
    return rows


def gathered(part: Part, numbers: Tensor) -> Tensor:
    """These numbers of every process, a row each, in the order of the tensor's rows."""
    if part.group is None:
        return numbers[None]
    mine = numbers.to(part.device)
    everybody = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(part.group))]
    torch.distributed.all_gather(everybody, mine, group=part.group)
    return torch.stack(everybody)


def sum_before(part: Part, numbers: Tensor) -> Tensor:
    """The sums of these numbers over the processes that hold earlier rows."""
    return gathered(part, numbers)[: torch.distributed.get_rank(part.group)].sum(0)


def local_counts(held: Sequence[tuple[Part, Tensor, int]]) -> list[int]:
    """How many non-zeros of each tensor this process has, where the last number is the count over all processes."""
    shards = [tensor.count_nonzero() for part, tensor, _ in held if part.group is not None]
    known = iter(torch.stack(shards).tolist() if shards else [])
    return [count if part.group is None else next(known) for part, _, count in held]


def is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor. Where nobody has imported them, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def has_shards(model: nn.Module) -> bool:
    return any(is_sharded(parameter) for parameter in model.parameters())


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, without a graph: writing to it writes to the tensor."""
    return tensor._local_tensor.detach() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def local_gradient(parameter: Tensor) -> Tensor | None:
    """What this process holds of p.grad: the same object, as long as p.grad is."""
    gradient = parameter.grad
    return gradient._local_tensor if is_sharded(gradient) else gradient  # type: ignore[union-attr]


def part_of(parameter: Any) -> Part:
    """Of a parameter that ``refusal`` has nothing against."""
    if not is_sharded(parameter):
        return WHOLE
    mesh, placements = parameter.device_mesh, parameter.placements
    dimension = next((d for d, placement in enumerate(placements) if placement.is_shard()), None)
    if dimension is None:
        return WHOLE
    rows = parameter.shape[0]
    each = -(-rows // mesh.size(dimension))  # as torch.chunk divides; the last ones may have fewer, or none
    first = min(rows, each * mesh.get_local_rank(dimension))
    return Part(first * (parameter.numel() // max(1, rows)), mesh.get_group(dimension), parameter._local_tensor.device)


def refusal(parameter: Any, modules: Iterable[nn.Module]) -> str:
    """Why a parameter of these modules that is sharded in this way can't be made sparse; nothing where it can."""
    if not is_sharded(parameter):
        return ""
    placements = tuple(parameter.placements)
    kinds = [type(placement).__name__ for placement in placements]
    divided = [placement for placement in placements if not placement.is_replicate()]
    by_fsdp = all(getattr(module, "_is_fsdp_managed_module", False) for module in modules)
    if by_fsdp and set(kinds) <= {"Replicate", "Shard"} and len(divided) <= 1 and all(p.dim == 0 for p in divided):
        return ""
    how = f"({', '.join(str(placement) for placement in placements)})"
    how += "" if by_fsdp else ", and not by fully_shard"
    return (
        f"is sharded as {how}: supported are fully_shard along dimension 0 and hybrid sharding, not tensor "
        "parallelism and not other dimensions"
    )


def like(parameter: Any, value: Tensor) -> Tensor:
    """Local rows as what the parameter is: a DTensor of the same sharding, or the tensor as it is."""
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import DTensor

    whole = torch.empty(parameter.shape, device="meta")
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def rows_of(parameter: Any, value: Any) -> Tensor:
    """The local rows of a value that has the parameter's shape: a DTensor of any sharding, or a whole tensor."""
    if is_sharded(value):
        if not is_sharded(parameter):
            whole: Tensor = value.full_tensor()
            return whole
        if value.placements != parameter.placements or value.device_mesh != parameter.device_mesh:
            value = value.redistribute(parameter.device_mesh, parameter.placements)
        return local(value)
    if not is_sharded(parameter):
        return value  # type: ignore[no-any-return]
    held = local(parameter)
    first = part_of(parameter).start // max(1, parameter.numel() // max(1, parameter.shape[0]))
    return value[first : first + held.shape[0]]  # type: ignore[no-any-return]


def check_all_sharded(parameters: Mapping[str, Any]) -> None:
    """FSDP averages no gradient of a parameter that it has not sharded, so each process would grow other weights."""
    plain = [name for name, parameter in parameters.items() if not is_sharded(parameter)]
    if 0 < len(plain) < len(parameters):
        raise CiglError(
            f"{plain[0]} is not sharded, but others are, so its masks would differ between the processes: shard it "
            f"with fully_shard too, or leave it out with layers={{{plain[0]!r}: False}}."
        )


def check_same(parameter: Any, numbers: Sequence[int], what: Sequence[str]) -> None:
    """Refuse, on every process of the parameter's mesh, where one of the numbers is not the same on all of them."""
    rows = torch.tensor([numbers], dtype=torch.int64)
    for part in reversed(_over_mesh(parameter)):  # the last dimension first, which gives them in the mesh's order
        rows = gathered(part, rows.flatten()).view(-1, len(what))
    everybody = rows.tolist()
    for place, name in enumerate(what):
        for rank, theirs in enumerate(everybody):
            if theirs[place] != everybody[0][place]:
                raise CiglError(
                    f"the processes 0 and {rank}, which train one sharded model, have {name}: call cigl.attach with "
                    "the same model and the same arguments everywhere."
                )


def average(parameter: Any, tensors: Sequence[Tensor]) -> None:
    """Each tensor becomes its mean over all processes of the parameter's mesh."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    for part in _over_mesh(parameter):
        torch.distributed.all_reduce(flat, group=part.group)
    flat /= parameter.device_mesh.size()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def _over_mesh(parameter: Any) -> list[Part]:
    """The processes along each dimension of its mesh: those that share the tensor, and those that have copies."""
    mesh, device = parameter.device_mesh, parameter._local_tensor.device
    return [Part(0, mesh.get_group(dimension), device) for dimension in range(mesh.ndim)]


def reshard(model: nn.Module) -> None:
    """Weights that FSDP keeps gathered are thrown away, because the sharded ones are about to change."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()
