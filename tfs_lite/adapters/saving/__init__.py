"""``tfs_lite.save``: from a module in Python to a version that a server loads without its code.

save        the entry point: exports, checks what was written as the server would, publishes
examples    what a module is called with: names of inputs, batches, dynamic dimensions
outputs     what a module returns, as tensors by name
answers     compares the program's answers with the module's
compiled    compiles an exported program with AOTInductor; the code and the program are in one archive
refusals    why a module cannot be exported, in a paragraph that says what to write instead
"""
