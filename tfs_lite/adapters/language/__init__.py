"""Platform ``transformers``: decoders as ``save_pretrained`` writes them, behind an engine that batches their texts.

transformers_model      the platform; it opens a version
hf_files, family, weights, budget   its files, its class, its weights, the memory that it will take
codec, byte_codec, template_probe   its tokenizer and chat template
network, attention, layout, cache   many texts in one forward, each with its slot of the cache
packed                  linear layers as oneDNN reads them fastest
sampler, exponential_sampling   logits to tokens
fixed_decode, engine_stream   decode steps of fixed shapes for CUDA graphs; the stream of an engine
lengths                 at which a network may change its ways; checks run texts on both sides of them
self_check              whether the model may be batched, found out by numbers
architectures           what checks have found, for the versions of an architecture that come later
interleaved             the fallback for models that cannot be batched
"""
