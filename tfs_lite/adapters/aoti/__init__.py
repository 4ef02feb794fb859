"""Platform ``pytorch_aoti``: programs that AOTInductor compiled to machine code (by ``tfs_lite.save``), with the
exported program itself.

    machine    what the code was compiled for, compared with this machine before it is loaded
    model      the platform: inspects the archive, loads the code, gives it the weights, runs it

Compiled code checks nothing: neither the machine on which it runs, nor dtypes, shapes and strides of what it gets. All
of that is checked here before it is called.
"""
