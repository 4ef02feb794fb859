"""Ensembles: several served models behind one name, joined by named tensors.

In reading order: ``types`` (what an ensemble is made of, and how a tensor passes between a model with a batch
dimension and one without), ``checks`` (does an ensemble fit the models that its steps name?), ``models`` (are those
models there, and is the ensemble itself among them?), ``graph`` (which steps are needed, and which can run now),
``run`` (one request on its way through the steps), ``servable``.
"""
