"""The function of an exported program, without what every call of it would pay for and a server does not need.

torch's module takes its inputs apart as a tree, although here they are flat, and finds every weight through a fallback
of ``torch.nn.Module`` that costs as much as a small operator. For a small network the two are half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx.graph import CodeGen


def plain_forward(program: ExportedProgram) -> Callable[..., Sequence[torch.Tensor]]:
    """Takes the inputs by position and returns the results in order, both flat. The program's guards and hooks are
    off. For programs that write to none of their tensors: weights are looked up where nobody would notice a new one."""
    module = program.module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    module.graph.set_codegen(CodeGen())
    module.recompile()
    for part in module.modules():
        part.__dict__.update(part.named_parameters(recurse=False))
        part.__dict__.update(part.named_buffers(recurse=False))
        part.__dict__.update(part.named_children())
    forward: Callable[..., Sequence[torch.Tensor]] = module.forward
    return forward
