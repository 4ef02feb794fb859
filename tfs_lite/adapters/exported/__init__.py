"""Exported programs (``model.pt2``): read, checked and built as a function, without torch's own loader.

program       the entry point: from an archive to a program that can be called
document      reads and checks what ``torch.export.save`` wrote; ``expression``: the sizes in it
signature     names, dtypes and shapes of inputs and results; ``conditions``: what is said of sizes beyond these
function      a graph as one Python function; ``arguments``: what its nodes are called with
operators     which operators a program may call
layout        other layouts of the weights, faster on a CPU
weights       the tensors, read in pieces
torch_loader  torch's own loader, for programs that are not built directly
"""
